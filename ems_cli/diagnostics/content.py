"""What is written into a synthetic cache: no two blocks of any tensors are alike anywhere.

Every block has a number. Its bytes are a fixed random pattern, eight bytes at a time, plus a
scrambled form of block number, layer and plane; blocks of different numbers, layers or planes
therefore differ in every eight bytes, and within a block no two places are alike.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]

_WORD: Final = 8
_SEED: Final = 0x454D53
_GOLDEN: Final = 0x9E3779B97F4A7C15
_PLANES: Final = 1 << 6
_LAYERS: Final = 1 << 16


def block_rows(layer: int, plane: int, numbers: Sequence[int], nbytes: int) -> Bytes:
    """Return the content of blocks with these numbers in one tensor: a row of `nbytes` each."""
    codes = np.array([_code(layer, plane, number) for number in numbers], np.uint64)
    words = _pattern(-(-nbytes // _WORD)) + codes[:, None]
    return np.ascontiguousarray(words.view(np.uint8)[:, :nbytes])


def wrong_rows(found: Bytes, expected: Bytes) -> list[int]:
    """Return which rows differ."""
    if found.shape == expected.shape and np.array_equal(found, expected):
        return []
    wrong: list[int] = np.flatnonzero((found != expected).any(axis=1)).tolist()
    return wrong


def number_of(row: Bytes, layer: int, plane: int, numbers: Sequence[int]) -> int | None:
    """Return which of `numbers` a row of a tensor belongs to; None if it is none of them whole."""
    for number in numbers:
        if np.array_equal(block_rows(layer, plane, [number], row.size)[0], row):
            return number
    return None


def _code(layer: int, plane: int, number: int) -> int:
    """Return 64 bits that differ for every place; the last step of splitmix64 spreads them."""
    mixed = ((number * _LAYERS + layer) * _PLANES + plane + 1) * _GOLDEN % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


@lru_cache(maxsize=8)
def _pattern(words: int) -> _Words:
    return np.random.default_rng(_SEED).integers(0, 2**64, words, np.uint64)
