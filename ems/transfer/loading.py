"""Loads the blocks of one task."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from ems.common.exception import EmsException
from ems.common.result import CcResult
from ems.layout.part import Part
from ems.pool.base import Held, Miss, PoolEngine, TooMuchAtOnce
from ems.transfer.pipeline import Pipeline
from ems.transfer.slices import (
    prefix_of,
    spans_between,
    wanted_of,
    windows_of,
)


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
        self._loaded = np.zeros((len(parts), len(parts[0].keys)), np.bool_)
        self._has_fuller = False
        """Whether an entry was larger, as it is stored, than what is asked of it."""
        self._missed: dict[int, Miss] = {}
        """The first reason for which a hash is not to be had."""

    def run(self) -> CcResult:
        """See `Mover.run`."""
        try:
            for window, slices in windows_of(self._parts, self._pool, self._pipeline):
                if not self._load_window(window, slices):
                    break
            self._pipeline.finish()
        except BaseException:
            self._pipeline.drain()
            raise
        success = prefix_of(self._parts, self._loaded)
        self._note_fates(success)
        return CcResult(success, self._loaded.shape[1])

    def _note_fates(self, success: int) -> None:
        fates = self._pipeline.tally.fates
        fates["done"] = success
        for at in range(success, self._loaded.shape[1]):
            miss = self._missed.get(at)
            fates["behind_a_miss" if miss is None else miss.name.lower()] += 1

    def _load_window(self, window: range, slices: Sequence[range]) -> bool:
        """Load what the pool has of a window; return whether more may follow."""
        if self._has_fuller:  # two windows may be more than there is room for, as they are stored
            self._pipeline.finish()
        try:
            held = self._acquire(window)
        except TooMuchAtOnce:  # since longer entries are stored than asked for
            if len(window) == 1:
                raise
            self._pipeline.finish()
            middle = window[len(window) // 2]
            halves = range(window.start, middle), range(middle, window.stop)
            return all(self._load_window(half, [half]) for half in halves)
        try:
            hits = self._usable(window, held)
            for piece in slices:
                batch = [
                    {at: mine.pop(at) for at in piece if at in mine and at < window.start + hits}
                    for mine in held
                ]
                if any(batch):
                    self._load(batch)
        finally:
            self._release(held)
        return hits == len(window)

    def _usable(self, window: range, held: Sequence[Mapping[int, Held]]) -> int:
        """Return how many hashes of a window are to be loaded.

        Where the request is one window, exactly the prefix that every part can serve. Else up to
        the first hash that a part without a window misses; the result counts exactly all the same.
        """
        if all(len(mine) == len(window) for mine in held):
            return len(window)
        found = np.array([[at in mine for at in window] for mine in held])
        if len(window) == self._loaded.shape[1]:
            return prefix_of(self._parts, found)
        needed = [mine for part, mine in zip(self._parts, found, strict=True) if not part.window]
        missed = ~np.logical_and.reduce(needed) if needed else np.zeros(len(window), np.bool_)
        return int(np.argmax(missed)) if missed.any() else len(window)

    def _acquire(self, window: range) -> list[dict[int, Held]]:
        """Return, by part and hash, what the pool has."""
        wanted = wanted_of(self._parts, window)
        self._pipeline.lap("plan")
        answers = self._pool.acquire(
            [one.key for one in wanted],
            [one.tokens for one in wanted],
            deadline=self._deadline,
        )
        self._pipeline.lap("pool")
        held: list[dict[int, Held]] = [{} for _ in self._parts]
        for (index, at, *_, nbytes), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Held):
                held[index][at] = answer
                self._has_fuller |= answer.nbytes > nbytes
            else:
                self._missed.setdefault(at, answer)
        return held

    def _load(self, batch: Sequence[dict[int, Held]]) -> None:
        def settle(arrived: bool) -> None:  # noqa: FBT001 - the one thing the pipeline has to say
            self._release(batch)
            if arrived:
                for index, mine in enumerate(batch):
                    self._loaded[index, list(mine)] = True

        self._pipeline.push(lambda: spans_between(self._parts, batch), settle)

    def _release(self, batch: Sequence[dict[int, Held]]) -> None:
        with suppress(EmsException):  # what was read is right, whatever has become of the pool
            self._pool.release([held for mine in batch for held in mine.values()])
