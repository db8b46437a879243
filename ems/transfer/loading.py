"""Loads the blocks of one task."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from ems.common.exception import EmsException
from ems.common.result import CcResult
from ems.layout.part import Part
from ems.pool.base import Held, Miss, PoolEngine, TooMuchAtOnce
from ems.transfer.pipeline import Pipeline
from ems.transfer.slices import (
    Wanted,
    is_cut,
    prefix_of,
    spans_between,
    wanted_of,
    windows_of,
)


class Loading:
    """One load: acquire, copy in, release, slice by slice, up to the first miss.

    Nothing is written behind the prefix that every layer group can serve.
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
            end = self._loaded.shape[1]
            if is_cut(self._parts, self._pool, self._pipeline):
                end = self._servable
            for window, slices in windows_of(self._parts, self._pool, self._pipeline):
                mine = range(window.start, min(window.stop, end))
                if not mine or not self._load_window(mine, slices):
                    break
            self._pipeline.finish()
        except BaseException:
            self._pipeline.drain()
            raise
        success = prefix_of(self._parts, self._loaded)
        self._note_fates(success)
        return CcResult(success, self._loaded.shape[1])

    @cached_property
    def _servable(self) -> int:
        """How many hashes to ask for where they come window by window; looked up once.

        What a layer group with a window misses ends a prefix only with what follows it, which is to
        be seen before anything is written. What goes meanwhile is noticed too late for that.
        """
        if all(part.window is None for part in self._parts):
            return self._loaded.shape[1]
        wanted = wanted_of(self._parts, range(self._loaded.shape[1]))
        infos = self._pool.lookup([one.key for one in wanted], deadline=self._deadline)
        there = np.zeros_like(self._loaded)
        for one, info in zip(wanted, infos, strict=True):
            there[one.part, one.at] = info is not None and info.tokens >= one.tokens
        end = prefix_of(self._parts, there)
        if absent := [one for one in wanted if one.at == end and not there[one.part, end]]:
            self._note_why(absent)
        return end

    def _note_why(self, absent: Sequence[Wanted]) -> None:
        """Note why entries that are not there are not; a look-up does not tell."""
        keys, tokens = [one.key for one in absent], [one.tokens for one in absent]
        for one, answer in zip(
            absent, self._pool.acquire(keys, tokens, deadline=self._deadline), strict=True
        ):
            if isinstance(answer, Miss):
                self._missed.setdefault(one.at, answer)
            else:  # it has just been saved
                self._pool.release([answer])

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
            stop, middle = min(window.stop, self._servable), window[len(window) // 2]
            halves = range(window.start, min(middle, stop)), range(middle, stop)
            loaded = all(self._load_window(half, [half]) for half in halves if half)
            return loaded and stop == window.stop
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
        the first hash that a part without a window misses, as `_servable` has looked before.
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
