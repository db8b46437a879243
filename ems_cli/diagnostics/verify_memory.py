"""A coded cache of one rank, what each of its slots should hold, and how that is checked."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ems.common.exception import DeviceFailed
from ems_cli.diagnostics.dtypes import ITEMSIZE
from ems_cli.diagnostics.position_code import Book, Bytes, Form, Ints, Origin, block_bytes
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.verify_faults import Fault, FaultKind, Surroundings, diagnose
from ems_cli.diagnostics.verify_region import Region

_LATE_SECONDS: Final = 0.3
"""How long wrong memory is given to change, before it counts as what was left there."""


@dataclass(slots=True)
class Tally:
    """What has been compared so far."""

    elements: int = 0
    nbytes: int = 0


class CodedMemory:
    """One rank's cache. Every element has a known content at any time."""

    def __init__(
        self, rank: int, cache: Any, forms: list[list[Form]], names: list[list[str]], book: Book
    ) -> None:
        """Take a `GuardedCache`; `names` are those of its tensors, by layer and plane."""
        self.rank = rank
        self.cache = cache
        self.forms = forms
        self.names = names
        self.book = book
        self.block_size = forms[0][0].block_size
        self.columns: Ints = np.zeros((0, 3), np.int64)
        """[slots, 3]: rank, generation and slot in which each token was written."""
        self.homes: dict[tuple[int, int, int], int] = {}
        """Rank, generation and slot of what was loaded: the slot where it belongs."""
        self.former_homes: dict[tuple[int, int, int], int] = {}
        """The same of the steps before."""
        self.generation = 0
        """The first one of the step."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return len(self.columns) // self.block_size

    def fill(self, generation: int, num_blocks: int) -> None:
        """Write all blocks; begins a step."""
        self.generation = generation
        self.former_homes = {**self.former_homes, **self.homes}
        self.homes = {}
        self.columns = np.zeros((num_blocks * self.block_size, 3), np.int64)
        self.write(generation, range(num_blocks))

    def distrust(self) -> None:
        """Expect nothing until the next `fill`."""
        self.columns = self.columns[:0]
        with suppress(DeviceFailed):  # the fault that led here is told
            self.cache.restore_guards()

    def write(self, generation: int, blocks: Iterable[int]) -> None:
        """Write blocks with the content of a generation that was never used."""
        chosen = list(blocks)
        for layer, planes in enumerate(self.forms):
            for plane, form in enumerate(planes):
                rows = [
                    block_bytes(form, Origin(self.rank, generation, layer, plane, block, 0))
                    for block in chosen
                ]
                self.cache.write(layer, plane, chosen, np.array(rows))
        for block in chosen:
            slots = np.arange(block * self.block_size, (block + 1) * self.block_size)
            self.columns[slots] = np.stack(
                [np.full_like(slots, self.rank), np.full_like(slots, generation), slots], axis=1
            )
        self.book.note(self.rank, generation, chosen)

    def expect(self, slots: Sequence[int], columns: Ints) -> None:
        """Take note that slots were loaded with what `columns` says."""
        self.columns[list(slots)] = columns
        for slot, column in zip(slots, columns.tolist(), strict=True):
            self.homes[tuple(column)] = slot

    def check(self, before: Ints | None, tally: Tally, *, late: bool = False) -> Fault | None:
        """Compare all of the memory; `before` is what `columns` was when the call began.

        With `late` nothing has been called since the memory was found right.
        """
        before = self.columns if before is None else before
        regions, guard = self._wrong(before, tally)
        if not regions:
            return guard
        around = self.surroundings(regions)
        fault = diagnose(regions, around)
        if late:
            return Fault(FaultKind.LATE_WRITE, fault.text, fault.regions)
        _give_time()
        again, _ = self._wrong(before, Tally())
        changed = len(again) != len(regions) or any(
            not np.array_equal(one.found, other.found)
            for one, other in zip(regions, again, strict=True)
        )
        if changed:
            text = f"{fault.text}; {_LATE_SECONDS:g} s later it had changed again"
            return Fault(FaultKind.LATE_WRITE, text, fault.regions)
        return fault

    def surroundings(self, regions: Sequence[Region]) -> Surroundings:
        """Return what is needed to judge regions."""
        return Surroundings(
            self.book,
            self.names,
            self.forms,
            [
                [self.cache.stride_nbytes(layer, plane) for plane in range(len(planes))]
                for layer, planes in enumerate(self.forms)
            ],
            self.generation,
            self.homes,
            self.former_homes,
            frozenset(
                (each.layer, each.plane, each.block) for each in regions if each.block is not None
            ),
        )

    def _wrong(self, before: Ints, tally: Tally) -> tuple[list[Region], Fault | None]:
        regions: list[Region] = []
        guard: Fault | None = None
        size = self.block_size
        for layer, planes in enumerate(self.forms):
            for plane, form in enumerate(planes):
                content = self.cache.read(layer, plane)
                tally.elements += content.blocks.size // form.itemsize
                tally.nbytes += content.blocks.size
                if content.broken_guard is not None and guard is None:
                    guard = self._broken(layer, plane, content.broken_guard)
                for block, found in enumerate(content.blocks):
                    slots = slice(block * size, (block + 1) * size)
                    expected = rows_of(form, layer, plane, self.columns[slots])
                    if not np.array_equal(found, expected):
                        regions.append(
                            Region(
                                layer,
                                plane,
                                block,
                                f"block {block}",
                                found.copy(),
                                expected,
                                self.columns[slots],
                                before[slots],
                            )
                        )
        return regions, guard

    def _broken(self, layer: int, plane: int, where: tuple[int, int]) -> Fault:
        block, at = where
        place = f"behind block {block}" if block >= 0 else "in front of block 0"
        text = f"{self.names[layer][plane]}: the guarded memory {place} has changed at byte {at}"
        return Fault(FaultKind.NEIGHBOUR_OVERWRITTEN, text)


def _give_time() -> None:
    time.sleep(_LATE_SECONDS)


def rows_of(form: Form, layer: int, plane: int, columns: Ints) -> Bytes:
    """Return the bytes of tokens in one tensor that were written as `columns` says."""
    size = form.block_size
    block, token = np.divmod(columns[:, 2], size)
    first = Origin(int(columns[0, 0]), int(columns[0, 1]), layer, plane, int(block[0]), 0)
    if len(columns) == size and _is_one_block(columns, token):
        return block_bytes(form, first)
    found = np.empty((len(columns), form.token_nbytes), np.uint8)
    sources = np.stack([columns[:, 0], columns[:, 1], block], axis=1)
    distinct, which = np.unique(sources, axis=0, return_inverse=True)
    for index, (rank, generation, number) in enumerate(distinct.tolist()):
        mine = which.ravel() == index
        origin = Origin(rank, generation, layer, plane, number, 0)
        rows = block_bytes(form, origin).reshape(size, form.token_nbytes)
        found[mine] = rows[token[mine]]
    return found.ravel()


def _is_one_block(columns: Ints, token: Ints) -> bool:
    same = (columns[:, :2] == columns[0, :2]).all()
    return bool(same and token[0] == 0 and (np.diff(columns[:, 2]) == 1).all())


def forms_of(shape: CacheShape) -> list[list[Form]]:
    """Return the forms of a shape's tensors, by layer and plane."""
    return [
        [
            Form(shape.block_size, plane.heads, plane.head_size, ITEMSIZE[plane.dtype])
            for plane in layer.planes
        ]
        for layer in shape.layers
    ]
