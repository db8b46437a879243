"""From wrong bytes to what went wrong: where they came from, and the kind of fault that does so."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from ems_cli.diagnostics.position_code import WORD, Book, Form, Origin
from ems_cli.diagnostics.verify_region import Region, origins, swapped_axes

_MOST_REGIONS: Final = 12
"""Regions that are looked into; the others are only counted."""


class FaultKind(enum.Enum):
    """What makes bytes wrong; the first of those seen names a check's fault."""

    LATE_WRITE = "late write"
    """Memory changed after the future had ended."""
    AXES_SWAPPED = "axes swapped"
    OTHER_RANK = "another rank's"
    NEIGHBOUR_OVERWRITTEN = "neighbour overwritten"
    """What arrived where it belongs was written elsewhere as well, or guarded memory changed."""
    PLANES_SWAPPED = "K/V swapped"
    """One plane holds what belongs into another of its layer."""
    WRONG_LAYER = "wrong layer"
    OFF_BY_ONE_BLOCK = "off by one block"
    WRONG_STRIDE = "wrong stride"
    """The distance from where the bytes belong grows from block to block, or token to token."""
    SHIFTED = "shifted"
    """The same distance everywhere within a block."""
    WRONG_BLOCK = "wrong block"
    TORN = "torn"
    """Old and new mixed."""
    STALE = "stale"
    """An older generation."""
    TOO_NEW = "saved late"
    """What was written after the save's future had ended."""
    NOT_WRITTEN = "nothing arrived"
    """The memory holds what it held before, though success was reported."""
    UNKNOWN = "garbage"
    """Bytes that were never written anywhere."""
    WRONG_COUNT = "wrong count"
    """The library reported more or fewer hashes than it should."""
    FAILED = "failed"
    """A call failed that should not have."""


_ORDER: Final = list(FaultKind)


@dataclass(frozen=True, slots=True)
class Fault:
    """What one check found wrong."""

    kind: FaultKind
    text: str
    regions: int = 1
    """Blocks of single tensors in which bytes were wrong."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known around wrong regions."""

    book: Book
    names: Sequence[Sequence[str]]
    """By layer and plane: "layer 7 K"."""
    forms: Sequence[Sequence[Form]]
    strides: Sequence[Sequence[int]]
    """Bytes from one block to the next."""
    generation: int
    """The first one of the step."""
    homes: Mapping[tuple[int, int, int], int]
    """Rank, generation and slot of what was loaded: the slot where it belongs now."""
    former_homes: Mapping[tuple[int, int, int], int]
    """The same of the steps before."""
    wrong: frozenset[tuple[int, int, int]]
    """Layer, plane and block of every wrong region."""


class _Seen(NamedTuple):
    kind: FaultKind
    text: str
    distance: Fraction | None = None
    """In blocks, from where the bytes are to where they belong."""
    same_block: bool = False


def diagnose(regions: Sequence[Region], around: Surroundings) -> Fault:
    """Return what is wrong with regions, of which there is at least one."""
    seen = [each for region in regions[:_MOST_REGIONS] for each in _look_into(region, around)]
    kind = min((each.kind for each in seen), key=_ORDER.index)
    text = next(each.text for each in seen if each.kind is kind)
    if kind is FaultKind.WRONG_STRIDE:
        kind = _kind_of_distance([each for each in seen if each.distance is not None])
    return Fault(kind, text, len(regions))


def _kind_of_distance(seen: Sequence[_Seen]) -> FaultKind:
    """Return what the distances of bytes from where they belong come from."""
    distances = {each.distance for each in seen}
    if distances in ({Fraction(1)}, {Fraction(-1)}):
        return FaultKind.OFF_BY_ONE_BLOCK
    distance = distances.pop()
    if distances or distance is None:
        return FaultKind.WRONG_STRIDE
    if all(each.same_block for each in seen):
        return FaultKind.SHIFTED
    return FaultKind.WRONG_BLOCK if distance.denominator == 1 else FaultKind.WRONG_STRIDE


def _look_into(region: Region, around: Surroundings) -> list[_Seen]:
    form = around.forms[region.layer][region.plane]
    axes = swapped_axes(region, form)
    if axes:
        text = f"{_here(region, 0, around)} on: {axes} are swapped"
        return [_Seen(FaultKind.AXES_SWAPPED, text)]
    seen, unknown = [], []
    for at, origin in origins(region, around.book):
        if origin is None:
            unknown.append(at)
        else:
            seen.append(_judge(region, at, origin, around))
    if not seen:
        return [_of_unknown(region, unknown[0], around)]
    mixed = _holds_right_words(region) or len({each.kind for each in seen}) > 1
    if mixed:
        seen = [each._replace(kind=FaultKind.TORN) if each.kind in _OLD else each for each in seen]
    return seen


_OLD: Final = {FaultKind.NOT_WRITTEN, FaultKind.STALE, FaultKind.TOO_NEW}


def _judge(region: Region, at: int, origin: Origin, around: Surroundings) -> _Seen:
    """Return what it means that `origin` is found at byte `at` of a region."""
    wanted = _wanted(region, at, around)
    text = f"{_here(region, at, around)} holds {_spot(origin, around)}, not {_spot(wanted, around)}"
    here = (wanted.block, wanted.offset) if region.block is None else (region.block, at)
    if _is_as_before(region, at, origin, wanted, around):
        return _Seen(FaultKind.NOT_WRITTEN, f"{text}: as before the load")
    if origin.rank != wanted.rank:
        return _Seen(FaultKind.OTHER_RANK, text)
    written = _written(origin, around)
    former = around.former_homes.get(written)
    if former is not None and here == _home(former, origin, around):
        return _Seen(FaultKind.LATE_WRITE, f"{text}: an earlier load has written it again")
    home = around.homes.get(written)
    form = around.forms[region.layer][region.plane]
    if region.is_bystander(at // form.token_nbytes):
        return _bystander(region, at, origin, home, text, around)
    return _misplaced(here, origin, wanted, None if region.block is None else home, text, around)


def _misplaced(  # noqa: PLR0913, PLR0917 - all that is known of one finding
    here: tuple[int, int],
    origin: Origin,
    wanted: Origin,
    home: int | None,
    text: str,
    around: Surroundings,
) -> _Seen:
    """Return what it means that `origin` came where `wanted` should have come."""
    if origin.generation < min(wanted.generation, around.generation) or (
        origin.block == wanted.block and origin.generation < wanted.generation
    ):
        return _Seen(FaultKind.STALE, text)
    if replace(origin, generation=wanted.generation) == wanted:
        return _Seen(FaultKind.TOO_NEW, text)
    if home is None:
        place = (wanted.block, wanted.offset), (origin.block, origin.offset)
    else:
        place = here, _home(home, origin, around)
    return _displaced(text, wanted, origin, place, around)


def _is_as_before(
    region: Region, at: int, origin: Origin, wanted: Origin, around: Surroundings
) -> bool:
    if region.before is None:
        return False
    form = around.forms[region.layer][region.plane]
    old = tuple(int(each) for each in region.before[at // form.token_nbytes])
    return old == _written(origin, around) and _in_place(origin, wanted, old, form)


def _home(slot: int, origin: Origin, around: Surroundings) -> tuple[int, int]:
    """Return block and offset where a byte belongs whose token belongs into `slot`."""
    form = around.forms[origin.layer][origin.plane]
    block, token = divmod(slot, form.block_size)
    return block, token * form.token_nbytes + origin.offset % form.token_nbytes


def _bystander(  # noqa: PLR0913, PLR0917 - all that is known of one finding
    region: Region,
    at: int,
    origin: Origin,
    home: int | None,
    text: str,
    around: Surroundings,
) -> _Seen:
    """Return what it means that memory which should not have changed holds `origin`."""
    if home is None:
        late = origin.generation < around.generation
        return _Seen(FaultKind.LATE_WRITE if late else FaultKind.NEIGHBOUR_OVERWRITTEN, text)
    there = _home(home, origin, around)
    text = f"{text}; it belongs into block {there[0]}"
    if (origin.layer, origin.plane, there[0]) not in around.wrong:
        return _Seen(FaultKind.NEIGHBOUR_OVERWRITTEN, text)
    wanted = _wanted(region, at, around)
    return _displaced(text, wanted, origin, ((region.block or 0, at), there), around)


def _displaced(
    text: str,
    wanted: Origin,
    origin: Origin,
    place: tuple[tuple[int, int], tuple[int, int]],
    around: Surroundings,
) -> _Seen:
    if origin.layer != wanted.layer:
        return _Seen(FaultKind.WRONG_LAYER, text)
    if origin.plane != wanted.plane:
        return _Seen(FaultKind.PLANES_SWAPPED, text)
    stride = around.strides[origin.layer][origin.plane]
    (block, offset), (home, home_offset) = place
    distance = Fraction((home - block) * stride + home_offset - offset, stride)
    return _Seen(FaultKind.WRONG_STRIDE, text, distance, block == home)


def _in_place(origin: Origin, wanted: Origin, old: tuple[int, ...], form: Form) -> bool:
    """Whether what was there before stands where it stood."""
    token = old[2] % form.block_size
    return (
        (origin.layer, origin.plane) == (wanted.layer, wanted.plane)
        and origin.offset // form.token_nbytes == token
        and origin.offset % form.token_nbytes == wanted.offset % form.token_nbytes
    )


def _of_unknown(region: Region, at: int, around: Surroundings) -> _Seen:
    here = _here(region, at, around)
    form = around.forms[region.layer][region.plane]
    if region.is_bystander(at // form.token_nbytes):
        return _Seen(FaultKind.NEIGHBOUR_OVERWRITTEN, f"{here} was overwritten with other bytes")
    wrong = region.found != region.expected
    first = int(np.argmax(wrong))
    tail = wrong[first:]
    if first >= WORD and tail.size >= WORD and tail.mean() > 0.9:  # noqa: PLR2004 - chance equals
        text = f"{here}: {first} bytes arrived, and none of the {tail.size} behind them"
        return _Seen(FaultKind.TORN, text)
    count = int(wrong.sum())
    text = f"{here} holds bytes that were written nowhere ({count} of {wrong.size} differ)"
    return _Seen(FaultKind.UNKNOWN, text)


def _holds_right_words(region: Region) -> bool:
    same = region.found == region.expected
    words = same[: same.size // WORD * WORD].reshape(-1, WORD)
    return bool(words.all(axis=1).any())


def _wanted(region: Region, at: int, around: Surroundings) -> Origin:
    form = around.forms[region.layer][region.plane]
    token, within = divmod(at, form.token_nbytes)
    rank, generation, slot = (int(each) for each in region.columns[token])
    block, first = divmod(slot, form.block_size)
    offset = first * form.token_nbytes + within
    return Origin(rank, generation, region.layer, region.plane, block, offset)


def _written(origin: Origin, around: Surroundings) -> tuple[int, int, int]:
    form = around.book.forms_of(origin.rank)[origin.layer][origin.plane]
    token = origin.offset // form.token_nbytes
    return origin.rank, origin.generation, origin.block * form.block_size + token


def _here(region: Region, at: int, around: Surroundings) -> str:
    form = around.forms[region.layer][region.plane]
    token, head, dimension = form.coordinates(at)
    name = around.names[region.layer][region.plane]
    return f"{name} {region.where} token {token} head {head} dim {dimension}"


def _spot(origin: Origin, around: Surroundings) -> str:
    form = around.book.forms_of(origin.rank)[origin.layer][origin.plane]
    token, head, dimension = form.coordinates(origin.offset)
    own = origin.layer < len(around.names) and origin.plane < len(around.names[origin.layer])
    place = (origin.layer, origin.plane)
    name = around.names[place[0]][place[1]] if own else f"layer {place[0]} plane {place[1]}"
    return (
        f"{name} block {origin.block} token {token} head {head} dim {dimension} "
        f"(rank {origin.rank}, generation {origin.generation})"
    )
