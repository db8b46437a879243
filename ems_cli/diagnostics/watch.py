"""One look after another: rates between them, and processes that die meanwhile."""

from dataclasses import dataclass, replace
from typing import Final

from ems_cli.diagnostics.live import LiveReport, notes_on
from ems_cli.diagnostics.process_figures import OperationFigures, ProcessFigures, Rates

SHOWN_DEAD: Final = 5
"""Looks for which a process that is gone stays on the screen."""
_QUIET_SECONDS: Final = 3.0
"""A process at work writes once a second; one that has not for so long does nothing."""

_NOTHING: Final = Rates(0.0, 0.0, 0.0)

_Identity = tuple[int, int | None]


@dataclass
class _Known:
    figures: ProcessFigures
    written: float
    gone_for: int = 0


class Watch:
    """Adds to each report what can only be seen by comparing it with the one before."""

    def __init__(self) -> None:
        self._known: dict[_Identity, _Known] = {}

    def look(self, report: LiveReport) -> LiveReport:
        """Return `report` with rates; one that is gone stays for a few looks, then does not."""
        shown = [self._seen(process, report.time) for process in report.processes]
        present = {process.identity for process in report.processes}
        for identity, known in self._known.items():
            if identity not in present:
                known.gone_for += 1
                state = known.figures.state
                ended = replace(known.figures, state="ended" if state == "alive" else state)
                known.figures = _without_rates(ended)
                shown.append(known.figures)
        kept = [one for one in shown if self._known[one.identity].gone_for <= SHOWN_DEAD]
        dead = sum(one.state == "dead" for one in shown) - sum(one.state == "dead" for one in kept)
        kept.sort(key=lambda one: one.pid)
        notes = notes_on(kept)
        if dead:
            are = "1 dead process is" if dead == 1 else f"{dead} dead processes are"
            notes = (*notes, f"{are} not shown any more; --prune removes what they left")
        return replace(report, processes=tuple(kept), notes=notes)

    def _seen(self, process: ProcessFigures, now: float) -> ProcessFigures:
        written = now - process.written_seconds_ago
        before = self._known.get(process.identity)
        if before is not None and process.state == "alive":
            process = _with_rates(process, before.figures, written - before.written)
        gone_for = 0
        if process.state == "dead":
            gone_for = 1 + (before.gone_for if before else 0)
        self._known[process.identity] = _Known(process, written, gone_for)
        return process


def _with_rates(now: ProcessFigures, before: ProcessFigures, seconds: float) -> ProcessFigures:
    earlier = {operation.name: operation for operation in before.operations}
    if seconds > 0:
        rates = {one.name: _rates(one, earlier.get(one.name), seconds) for one in now.operations}
    elif now.written_seconds_ago < _QUIET_SECONDS:  # it has not written since: the last ones hold
        rates = {name: one.rates or _NOTHING for name, one in earlier.items()}
    else:
        rates = dict.fromkeys(earlier, _NOTHING)
    operations = tuple(replace(one, rates=rates.get(one.name)) for one in now.operations)
    return replace(now, operations=operations)


def _rates(now: OperationFigures, before: OperationFigures | None, seconds: float) -> Rates:
    calls, done, nbytes = (before.calls, before.done, before.nbytes) if before else (0, 0, 0)
    return Rates(
        (now.calls - calls) / seconds,
        (now.done - done) / seconds,
        (now.nbytes - nbytes) / seconds,
    )


def _without_rates(process: ProcessFigures) -> ProcessFigures:
    operations = tuple(replace(operation, rates=None) for operation in process.operations)
    return replace(process, operations=operations)
