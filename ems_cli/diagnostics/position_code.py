"""Bytes that tell where they belong: rank, generation, layer, plane, block, token, head, dimension.

A block's bytes are a pattern of its tensor's form, eight bytes at a time, xor a code of rank,
generation, layer, plane and block. Of each element, however narrow, the lowest bit is the parity
of the sum of all its coordinates: elements that are neighbours in any one of them differ. All
other bits are scrambled, so that eight bytes together occur in one place only, and can be found.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

WORD: Final = 8
_SEED: Final = 0x454D535646
_KEPT: Final = 2048
"""Writings of a block that are remembered, to be recognised."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the blocks of one tensor look."""

    block_size: int
    heads: int
    head_size: int
    itemsize: int

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.head_size * self.itemsize

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.token_nbytes

    def coordinates(self, offset: int) -> tuple[int, int, int]:
        """Return token, head and dimension of a byte of a block."""
        token, rest = divmod(offset, self.token_nbytes)
        head, rest = divmod(rest, self.head_size * self.itemsize)
        return token, head, rest // self.itemsize


@dataclass(frozen=True, slots=True)
class Origin:
    """Where bytes were written first."""

    rank: int
    generation: int
    layer: int
    plane: int
    block: int
    offset: int
    """Bytes into the block."""


def block_bytes(form: Form, origin: Origin) -> Bytes:
    """Return the bytes of the whole block that `origin` names."""
    code = _codes(
        form.itemsize,
        np.array(origin.rank),
        np.array(origin.generation),
        np.array(origin.block),
        np.array(origin.layer),
        np.array(origin.plane),
    )
    return (_pattern(form) ^ code).view(np.uint8)[: form.block_nbytes]


class Book:
    """Remembers what was written, to tell of eight bytes where they came from."""

    def __init__(self) -> None:
        self._forms: dict[int, list[list[Form]]] = {}
        self._written: dict[int, list[tuple[int, int]]] = {}

    def add_rank(self, rank: int, forms: list[list[Form]]) -> None:
        """Take note of a rank's tensors, layers × planes."""
        self._forms[rank] = forms
        self._written.setdefault(rank, [])

    def note(self, rank: int, generation: int, blocks: list[int]) -> None:
        """Take note that blocks were written."""
        written = self._written[rank]
        written += [(generation, block) for block in blocks]
        del written[:-_KEPT]

    def forms_of(self, rank: int) -> list[list[Form]]:
        """Return the forms of a rank's tensors."""
        return self._forms[rank]

    def origin_of(self, eight: Bytes) -> Origin | None:
        """Return where eight bytes were written, if they were a word of any block."""
        word = np.frombuffer(eight.tobytes(), np.uint64)[0]
        for form in {form for forms in self._forms.values() for planes in forms for form in planes}:
            for rank in self._forms:
                found = self._found(form, rank, word)
                if found is not None:
                    return found
        return None

    def _found(self, form: Form, rank: int, word: np.uint64) -> Origin | None:
        places = [
            (layer, plane)
            for layer, planes in enumerate(self._forms[rank])
            for plane, each in enumerate(planes)
            if each == form
        ]
        if not places or not self._written[rank]:
            return None
        layer, plane = np.array(places).T
        generation, block = np.array(self._written[rank]).T[:, :, None]
        codes = _codes(form.itemsize, np.array(rank), generation, block, layer, plane)
        index = _index(form)
        wanted = codes ^ word
        at = np.minimum(np.searchsorted(index.words, wanted), index.words.size - 1)
        hits = np.argwhere(index.words[at] == wanted)
        if not hits.size:
            return None
        row, column = hits[-1]  # the latest
        offset = int(index.order[at[row, column]]) * WORD
        return Origin(
            rank,
            int(generation[row, 0]),
            int(layer[column]),
            int(plane[column]),
            int(block[row, 0]),
            offset,
        )


@dataclass(frozen=True)
class _Index:
    """The words of a pattern, to be searched."""

    form: Form

    @cached_property
    def order(self) -> Ints:
        """Where the sorted words stand in the pattern."""
        return np.argsort(_whole_words(self.form), kind="stable")

    @cached_property
    def words(self) -> Words:
        """The words in ascending order."""
        return _whole_words(self.form)[self.order]


@lru_cache(maxsize=16)
def _index(form: Form) -> _Index:
    return _Index(form)


def _whole_words(form: Form) -> Words:
    """Return the pattern's words without a last one that a block does not fill."""
    pattern = _pattern(form)
    return pattern[: max(1, form.block_nbytes // WORD)]


@lru_cache(maxsize=16)
def _pattern(form: Form) -> Words:
    words = -(-form.block_nbytes // WORD)
    found = np.random.default_rng(_SEED).integers(0, 2**64, words, np.uint64)
    token, head, dimension = np.indices((form.block_size, form.heads, form.head_size))
    parity = ((token + head + dimension) & 1).astype(np.uint8).ravel()
    first = found.view(np.uint8)[: form.block_nbytes : form.itemsize]
    first[:] = first & 0xFE | parity
    return found


def _codes(  # noqa: PLR0913, PLR0917 - the coordinates of a block
    itemsize: int, rank: Ints, generation: Ints, block: Ints, layer: Ints, plane: Ints
) -> Words:
    """Return 64 bits that differ for every block; the last step of splitmix64 spreads them."""
    place = ((generation * 4096 + rank) * 65536 + layer) * 64 + plane
    mixed = _scrambled(place.astype(np.uint64)) ^ block.astype(np.uint64)
    mixed = _scrambled(mixed)
    parity = ((rank + generation + block + layer + plane) & 1).astype(np.uint64)
    ones = np.uint64(sum(1 << 8 * at for at in range(0, WORD, itemsize)))
    codes: Words = mixed & ~ones | parity * ones
    return codes


def _scrambled(values: Words) -> Words:
    with np.errstate(over="ignore"):  # modulo 2**64 is meant
        mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    scrambled: Words = mixed ^ mixed >> np.uint64(31)
    return scrambled
