"""All NPUs at once against each alone: how well they share the host."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Final

from ems_cli.diagnostics.bench import Together
from ems_cli.diagnostics.bench_figures import together_of
from ems_cli.diagnostics.bench_pool import await_pinning
from ems_cli.diagnostics.bench_rig import Place, rig
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_transfer import Transfer
from ems_cli.diagnostics.session import Tell

_ROUNDS: Final = 15


def bench_together(places: Sequence[Place], settings: Settings, tell: Tell) -> Together:
    """Save and load on each NPU alone, then on all at once, again and again.

    One thread of this process drives each NPU; ranks that are processes of their own share less.

    Raises:
        BadInput: the settings do not fit.
        EmsException: a call failed.
    """
    with ExitStack() as stack:
        rigs = [stack.enter_context(rig(place, settings, tell)) for place in places]
        for one in rigs:
            one.trips.content.touch_every_block()
        transfers = [Transfer(one.trips.parts, settings) for one in rigs]
        workers = stack.enter_context(ThreadPoolExecutor(len(transfers)))
        _at_once(workers, transfers)  # the first touches
        for one in rigs:
            await_pinning(one.trips.parts.pool)
        alone: list[list[float]] = [[] for _ in transfers]
        together: list[float] = []
        for _ in range(settings.runs or _ROUNDS):
            for mine, transfer in zip(alone, transfers, strict=True):
                mine.append(_at_once(workers, [transfer]))
            together.append(_at_once(workers, transfers))
        return together_of(
            [f"npu:{place.index}" for place in places],
            transfers[0].nbytes,
            alone,
            together,
        )


def _at_once(workers: ThreadPoolExecutor, transfers: Sequence[Transfer]) -> float:
    """Return the seconds from the common start until the last transfer had ended."""
    start = Barrier(len(transfers))

    def run(transfer: Transfer) -> tuple[float, float]:
        start.wait()
        return transfer.there_and_back()

    spans = list(workers.map(run, transfers))
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
