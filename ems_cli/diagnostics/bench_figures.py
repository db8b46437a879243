"""From the raw runs of a benchmark to its figures."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from ems_cli.diagnostics.bench import (
    ASYNC_LOAD,
    ASYNC_SAVE,
    BOTH,
    LIBRARY,
    LOAD,
    OPERATIONS,
    RAW_IN,
    RAW_IN_TWO,
    RAW_OUT,
    RAW_OUT_TWO,
    SAVE,
    Ceiling,
    Figures,
    Operation,
    Run,
    Together,
)
from ems_cli.diagnostics.measure import (
    BUSY_SHARE,
    FEW_SAMPLES,
    TIGHT,
    looseness,
    median_interval,
    percentile,
)

OTHER = "other"
"""The phase that is what the library's notes leave over."""


def operations_of(
    cold: Mapping[str, Sequence[Run]], runs: Mapping[str, Sequence[Run]]
) -> dict[str, Operation]:
    """Return the operations that have runs; those of one direction have the same ceiling."""
    ceilings: dict[str, Ceiling | None] = {}
    for one, two, names in _DIRECTIONS:
        if one in runs and two in runs:
            faster = _rate(runs[two]) > _rate(runs[one])
            ceilings |= dict.fromkeys(names, "two streams" if faster else "one stream")
    return {
        name: operation_of(cold.get(name, ()), runs[name], ceilings.get(name))
        for name in OPERATIONS
        if name in runs
    }


_DIRECTIONS: Final = (
    (RAW_OUT, RAW_OUT_TWO, (SAVE, ASYNC_SAVE)),
    (RAW_IN, RAW_IN_TWO, (LOAD, ASYNC_LOAD)),
)


def _rate(runs: Sequence[Run]) -> float:
    return median(run.bytes_per_second for run in runs)


def operation_of(
    cold: Sequence[Run], runs: Sequence[Run], ceiling: Ceiling | None = None
) -> Operation:
    """Return an operation with its figures; there is at least one run."""
    return Operation(tuple(cold), tuple(runs), figures_of(runs, ceiling))


def figures_of(runs: Sequence[Run], ceiling: Ceiling | None = None) -> Figures:
    """Return the figures of at least one run; without `ceiling` it is the faster raw copy."""
    seconds = [run.seconds for run in runs]
    submits = [run.submit_seconds for run in runs if run.submit_seconds is not None]
    transfers = [run.seconds - run.submit_seconds for run in runs if run.submit_seconds is not None]
    low, high = median_interval(seconds) or (None, None)
    loose = looseness(seconds)
    one, two = _ceilings(runs)
    ceiling = ceiling or _better(runs)
    nbytes = sum(run.nbytes for run in runs)
    return Figures(
        runs=len(runs),
        requested_blocks=sum(run.requested_blocks for run in runs),
        moved_blocks=sum(run.moved_blocks for run in runs),
        missed_blocks=sum(run.missed_blocks for run in runs),
        failed_blocks=sum(run.failed_blocks for run in runs),
        nbytes=nbytes,
        nbytes_per_run=nbytes // len(runs),
        seconds_p50=percentile(seconds, 50),
        seconds_p50_low=low,
        seconds_p50_high=high,
        tight=loose is not None and loose <= TIGHT,
        seconds_p90=percentile(seconds, 90),
        seconds_p99=percentile(seconds, 99),
        seconds_max=max(seconds),
        seconds_mean=sum(seconds) / len(seconds),
        submit_seconds_p50=percentile(submits, 50) if submits else None,
        transfer_seconds_p50=percentile(transfers, 50) if transfers else None,
        bytes_per_second=median(run.bytes_per_second for run in runs),
        ceiling=ceiling,
        ceiling_share=two if ceiling == "two streams" else one,
        one_stream_share=one,
        two_streams_share=two,
        phase_shares=phase_shares(runs),
    )


def _ceilings(runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Return the share of the raw copy on one stream, and of that on two."""
    return (
        _share((run.bytes_per_second, run.ceiling_bytes_per_second) for run in runs),
        _share((run.bytes_per_second, run.two_streams_bytes_per_second) for run in runs),
    )


def _share(pairs: Iterable[tuple[float, float | None]]) -> float | None:
    shares = [rate / ceiling for rate, ceiling in pairs if ceiling]
    return median(shares) if shares else None


def _better(runs: Sequence[Run]) -> Ceiling | None:
    """Return which raw copy is faster by its median, and so the ceiling."""
    one = [run.ceiling_bytes_per_second for run in runs if run.ceiling_bytes_per_second]
    two = [run.two_streams_bytes_per_second for run in runs if run.two_streams_bytes_per_second]
    if not one:
        return None
    return "two streams" if two and median(two) > median(one) else "one stream"


def phase_shares(runs: Sequence[Run]) -> dict[str, float]:
    """Return the share of each phase in the time of the library's calls; empty without notes."""
    whole = sum(run.call_seconds or 0.0 for run in runs)
    if whole <= 0:
        return {}
    names = dict.fromkeys(name for run in runs for name in run.phases)
    shares = {name: sum(run.phases.get(name, 0.0) for run in runs) / whole for name in names}
    return {**shares, OTHER: max(0.0, 1 - sum(shares.values()))}


def both_ways_gain(operations: Mapping[str, Operation]) -> float | None:
    """Return the rate of both directions at once by the mean rate of one; None if not measured."""
    if not {BOTH, ASYNC_SAVE, ASYNC_LOAD} <= operations.keys():
        return None
    one = [operations[name].figures.bytes_per_second for name in (ASYNC_SAVE, ASYNC_LOAD)]
    return operations[BOTH].figures.bytes_per_second / (sum(one) / 2) if sum(one) else None


def loosest(operations: Mapping[str, Sequence[Run]]) -> float | None:
    """Return half of the widest interval of the library's medians; None for too few runs."""
    found = [
        looseness([run.seconds for run in runs])
        for name, runs in operations.items()
        if name in LIBRARY
    ]
    return None if None in found else max((one for one in found if one is not None), default=None)


def together_of(
    devices: Sequence[str],
    nbytes_per_device: int,
    alone_seconds: Sequence[Sequence[float]],
    together_seconds: Sequence[float],
) -> Together:
    """Return how NPUs get on with each other, from at least one round."""
    alone = tuple(median(nbytes_per_device / each for each in one) for one in alone_seconds)
    whole = nbytes_per_device * len(devices)
    together = median(whole / seconds for seconds in together_seconds)
    return Together(
        tuple(devices),
        nbytes_per_device,
        tuple(tuple(one) for one in alone_seconds),
        tuple(together_seconds),
        alone,
        together,
        together / sum(alone) if sum(alone) else 0.0,
    )


def labels_of(
    *,
    simulated: bool,
    verified: bool,
    runs: int,
    others_cpu_share: float | None,
    busy: bool = False,
) -> tuple[str, ...]:
    """Return what must stand beside every figure; `busy` is the host beforehand."""
    labels = {
        "SIMULATED": simulated,
        "UNVERIFIED": not verified,
        "TOO FEW SAMPLES": runs < FEW_SAMPLES,
        "HOST BUSY": busy or (others_cpu_share is not None and others_cpu_share > BUSY_SHARE),
    }
    return tuple(label for label, holds in labels.items() if holds)
