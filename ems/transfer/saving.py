"""Saves the blocks of one task."""

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ems.common.exception import EmsException
from ems.common.result import CcResult
from ems.layout.part import Part
from ems.pool.base import NotStored, Place, PoolEngine, Refused
from ems.transfer.pipeline import Pipeline
from ems.transfer.slices import (
    prefix_of,
    spans_between,
    wanted_of,
    windows_of,
)

_LOG = logging.getLogger(__name__)


class Saving:
    """One save: reserve, copy out, commit, slice by slice.

    A hash that finds no place is left out and later ones are still stored: they serve other
    prefixes. The result counts the leading run. What comes behind as much as the pool can hold is
    left out unasked: its place would be that of the request's own first blocks.
    """

    def __init__(
        self, pool: PoolEngine, pipeline: Pipeline, parts: Sequence[Part], deadline: float | None
    ) -> None:
        self._pool = pool
        self._pipeline = pipeline
        self._parts = parts
        self._deadline = deadline
        keys = parts[0].keys
        first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        self._first = [first[key] for key in keys]
        """For each hash its first position in the request; a repeat shares the outcome."""
        self._stored = np.zeros((len(parts), len(keys)), np.bool_)
        self._moved = np.zeros(len(keys), np.bool_)

    def run(self) -> CcResult:
        """See `Mover.run`."""
        try:
            end = self._end_of_what_fits()
            for window, slices in windows_of(self._parts, self._pool, self._pipeline):
                if window.start >= end:
                    break
                self._store_window(range(window.start, min(window.stop, end)), slices)
            self._pipeline.finish()
        except BaseException:
            self._pipeline.drain()
            raise
        self._note_fates()
        stored = self._stored if self._stored.all() else self._stored[:, self._first]
        return CcResult(prefix_of(self._parts, stored), len(self._first))

    def _end_of_what_fits(self) -> int:
        """Return how many of the hashes, the first ones, the pool can hold together."""
        sizes = zip(*(part.nbytes.tolist() for part in self._parts), strict=True)  # by hash
        wanted = [
            (at, part.keys[at], nbytes)
            for at, (first, mine) in enumerate(zip(self._first, sizes, strict=True))
            if at == first
            for part, nbytes in zip(self._parts, mine, strict=True)
            if nbytes
        ]
        fitting = self._pool.fitting([key for _, key, _ in wanted], [one for *_, one in wanted])
        return wanted[fitting][0] if fitting < len(wanted) else len(self._first)

    def _note_fates(self) -> None:
        if self._moved.all() and self._stored.all():
            self._pipeline.tally.fates["done"] = len(self._first)
            return
        wanted = np.array([part.tokens > 0 for part in self._parts])
        stored = (self._stored | ~wanted).all(axis=0)[self._first]
        moved = self._moved[self._first]
        self._pipeline.tally.fates.update(
            done=int((stored & moved).sum()),
            already_there=int((stored & ~moved).sum()),
            no_space=int((~stored).sum()),
        )

    def _store_window(self, window: range, slices: Sequence[range]) -> None:
        places = self._reserve([at for at in window if self._first[at] == at])
        try:
            for piece in slices:
                batch = [{at: mine.pop(at) for at in piece if at in mine} for mine in places]
                if any(batch):
                    self._store(batch)
        except BaseException:
            self._abort(places)
            raise

    def _reserve(self, hashes: Sequence[int]) -> list[dict[int, Place]]:
        """Return, by part and hash, the places to fill; note what is stored already."""
        wanted = wanted_of(self._parts, hashes)
        self._pipeline.lap("plan")
        answers = self._pool.reserve(
            [one.key for one in wanted],
            [one.tokens for one in wanted],
            [one.nbytes for one in wanted],
            deadline=self._deadline,
        )
        self._pipeline.lap("pool")
        places: list[dict[int, Place]] = [{} for _ in self._parts]
        for (index, at, *_), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Place):
                places[index][at] = answer
            elif answer is Refused.ALREADY_THERE:
                self._stored[index, at] = True
        return places

    def _store(self, batch: Sequence[dict[int, Place]]) -> None:
        def settle(arrived: bool) -> None:  # noqa: FBT001 - the one thing the pipeline has to say
            if not arrived:
                self._abort(batch)
                return
            refused = self._commit([place for mine in batch for place in mine.values()])
            for index, mine in enumerate(batch):
                stored = [at for at, place in mine.items() if place.address not in refused]
                self._stored[index, stored] = True
                self._moved[stored] = True

        self._pipeline.push(lambda: spans_between(self._parts, batch), settle)

    def _commit(self, places: Sequence[Place]) -> set[int]:
        """Make places visible, and return the addresses of those that the pool could not store."""
        try:
            self._pool.commit(places)
        except NotStored as refusal:
            _LOG.warning("%s", refusal)
            return {place.address for place in refusal.places}
        return set()

    def _abort(self, batch: Sequence[dict[int, Place]]) -> None:
        with suppress(EmsException):  # the failure that led here is the one to report
            self._pool.abort([place for mine in batch for place in mine.values()])
