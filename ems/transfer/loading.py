"""Loads the blocks of one task."""

from collections.abc import Sequence
from contextlib import suppress

from ems.common.exception import EmsException
from ems.common.result import CcResult
from ems.layout.part import Part
from ems.pool.base import Held, PoolEngine
from ems.transfer.pipeline import Pipeline
from ems.transfer.slices import spans_between, windows_of


class Loading:
    """One load: acquire, copy in, release, slice by slice, up to the first miss.

    Nothing is written at or after the first hash that misses in any layer group.
    """

    def __init__(
        self, pool: PoolEngine, pipeline: Pipeline, parts: Sequence[Part], deadline: float | None
    ) -> None:
        self._pool = pool
        self._pipeline = pipeline
        self._parts = parts
        self._deadline = deadline
        self._loaded = 0

    def run(self) -> CcResult:
        """See `Mover.run`."""
        try:
            for window, slices in windows_of(self._parts, self._pool.window_nbytes):
                if not self._load_window(window, slices):
                    break
                if self._pool.window_nbytes is not None:
                    self._pipeline.finish()  # the next window must find the memory of this one
            self._pipeline.finish()
        except BaseException:
            self._pipeline.drain()
            raise
        return CcResult(self._loaded, len(self._parts[0].keys))

    def _load_window(self, window: range, slices: Sequence[range]) -> bool:
        """Load what the pool has of a window; return whether that was all of it."""
        held = self._acquire(window)
        hits = 0
        try:
            for at in window:
                if not all(at in mine for mine in held):
                    break
                hits += 1
            for piece in slices:
                batch = [
                    {at: mine.pop(at) for at in piece if at < window.start + hits} for mine in held
                ]
                if any(batch):
                    self._load(batch)
        finally:
            self._release(held)
        return hits == len(window)

    def _acquire(self, window: range) -> list[dict[int, Held]]:
        """Return, by part and hash, what the pool has."""
        parts = self._parts
        answers = iter(
            self._pool.acquire(
                [key for part in parts for key in part.keys[window.start : window.stop]],
                [
                    tokens
                    for part in parts
                    for tokens in part.tokens[window.start : window.stop].tolist()
                ],
                deadline=self._deadline,
            )
        )
        return [
            {at: answer for at in window if isinstance(answer := next(answers), Held)}
            for _ in parts
        ]

    def _load(self, batch: Sequence[dict[int, Held]]) -> None:
        def settle(arrived: bool) -> None:  # noqa: FBT001 - the one thing the pipeline has to say
            self._release(batch)
            if arrived:
                self._loaded += len(batch[0])

        self._pipeline.push(lambda: spans_between(self._parts, batch), settle)

    def _release(self, batch: Sequence[dict[int, Held]]) -> None:
        with suppress(EmsException):  # what was read is right, whatever has become of the pool
            self._pool.release([held for mine in batch for held in mine.values()])
