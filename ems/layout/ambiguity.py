"""Other readings that a tensor's shape allows.

The SDK fixes the meaning of the dimensions, so nothing is ever guessed from them. But a cache that
was laid out otherwise registers without an error where its numbers fit, and then loads put heads
where tokens belong. These are the readings worth a second look.
"""

from dataclasses import dataclass

_USUAL_BLOCK_SIZES = frozenset(2**n for n in range(4, 11))
_NZ_WIDTH = 16
_K_AND_V = 2


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
    """Return the readings, other than the documented one, under which `shape` looks usual.

    A shape whose second dimension is a usual block size (16 to 1024, a power of two) and whose
    third is not, is read one way only.
    """
    blocks, second, third, size = shape
    found = []
    if third in _USUAL_BLOCK_SIZES and size == _NZ_WIDTH:
        found.append(
            Reading("FRACTAL_NZ", f"{blocks} blocks × {second * size} wide in 16s × {third} tokens")
        )
    elif third in _USUAL_BLOCK_SIZES and (second not in _USUAL_BLOCK_SIZES or third > second):
        found.append(Reading("HND", f"{blocks} blocks × {second} heads × {third} tokens × {size}"))
    if blocks == _K_AND_V and second not in _USUAL_BLOCK_SIZES:
        found.append(Reading("fused", f"K and V × {second} blocks × {third} tokens × {size}"))
    return tuple(found)
