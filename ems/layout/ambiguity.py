"""Other readings that a tensor's shape allows.

The SDK fixes the meaning of the dimensions, so nothing is ever guessed from them. But a cache that
was laid out otherwise registers without an error where its numbers fit, and then loads put heads
where tokens belong. These are the readings worth a second look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ems.layout.plane import TensorFacts

_USUAL_BLOCK_SIZES = frozenset(2**n for n in range(4, 11))
_USUAL_HEADS = 32
"""KV heads of a rank, at most, in the models one meets."""
_MOST_HEADS = 128
_NZ_WIDTH = 16
_NZ_WIDTH_OF_BYTES = 32
_K_AND_V = 2
_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to understand four dimensions."""

    name: str
    dimensions: str

    def __str__(self) -> str:
        """Return the reading as a message shows it."""
        return f"{self.name} {self.dimensions}"


def documented_reading(shape: tuple[int, ...]) -> Reading:
    """Return the SDK's reading of `[num_blocks, block_size, heads, head_size]`."""
    blocks, tokens, heads, size = shape
    return Reading("ND", f"{blocks} blocks × {tokens} tokens × {heads} heads × {size}")


def other_readings(shape: tuple[int, ...]) -> tuple[Reading, ...]:
    """Return the readings, other than the documented one, under which `shape` looks usual."""
    blocks, second, third, size = shape
    found = []
    heads_first = _could_be_heads_and_tokens(second, third)
    if third in _USUAL_BLOCK_SIZES and size == _NZ_WIDTH:
        found.append(_nz(shape))
    elif heads_first:
        found.append(Reading("HND", f"{blocks} blocks × {second} heads × {third} tokens × {size}"))
        if size == _NZ_WIDTH_OF_BYTES:
            found.append(_nz(shape))
    if heads_first and second == _K_AND_V:
        found.append(Reading("fused", f"{blocks} blocks × K and V × {third} tokens × {size}"))
    if blocks == _K_AND_V and (third in _USUAL_BLOCK_SIZES or second not in _USUAL_BLOCK_SIZES):
        found.append(Reading("fused", f"K and V × {second} blocks × {third} tokens × {size}"))
    return tuple(found)


def _could_be_heads_and_tokens(second: int, third: int) -> bool:
    """Whether the two fit better the other way round than as tokens and heads.

    Both may be usual block sizes; then it takes more heads than any rank has: 16 tokens × 32 heads
    is an everyday cache, 32 tokens × 128 heads is not.
    """
    if third not in _USUAL_BLOCK_SIZES or second > _MOST_HEADS:
        return False
    return second not in _USUAL_BLOCK_SIZES or third > max(second, _USUAL_HEADS)


def _nz(shape: tuple[int, ...]) -> Reading:
    blocks, second, third, size = shape
    return Reading(
        "FRACTAL_NZ", f"{blocks} blocks × {second * size} wide in {size}s × {third} tokens"
    )


def shape_warnings(kvcache: Sequence[Sequence[TensorFacts]]) -> list[str]:
    """Return a warning for each ambiguous shape, naming the first tensor that has it."""
    first: dict[tuple[int, ...], str] = {}
    for layer, tensors in enumerate(kvcache):
        for index, facts in enumerate(tensors):
            first.setdefault(facts.shape, f"layer {layer} plane {index}")
    return [
        f"{name}: read as {documented_reading(shape)}; "
        f"its shape also fits {' and '.join(map(str, others))}"
        for shape, name in first.items()
        if len(shape) == _DIMENSIONS and (others := other_readings(shape))
    ]
