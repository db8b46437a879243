"""How the shapes of a cache can be read: the documented way, and the others that fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from ems.layout.ambiguity import documented_reading, other_readings
from ems.layout.plane import TensorFacts
from ems_cli.diagnostics.tensor_checks import tensors_of

_IF_SO = {
    "HND": "dimension 1 would be heads: a load would put heads where tokens belong",
    "fused": "K and V would be one tensor: register them apart",
    "FRACTAL_NZ": "a private format under a plain one's name: no block would be in one piece",
}


@dataclass(frozen=True, slots=True)
class OtherReading:
    """A layout that has the same numbers."""

    reading: str
    if_so: str
    """What would go wrong if it were the true one."""


@dataclass(frozen=True, slots=True)
class ShapeReading:
    """One shape that occurs in a cache, and how it is read."""

    shape: tuple[int, ...]
    first: str
    """The first tensor that has it."""
    tensors: int
    read_as: str
    others: tuple[OtherReading, ...]
    """Empty where no other usual layout has this shape."""


def readings_of(kvcache: Sequence[Sequence[TensorFacts]]) -> tuple[ShapeReading, ...]:
    """Return every shape of a cache once, with all of its readings."""
    found: dict[tuple[int, ...], list[str]] = {}
    for tensor in tensors_of(kvcache):
        if tensor.has_blocks:
            found.setdefault(tensor.shape, []).append(tensor.where)
    return tuple(
        ShapeReading(
            shape,
            where[0],
            len(where),
            str(documented_reading(shape)),
            tuple(
                OtherReading(str(one), _IF_SO.get(one.name, "")) for one in other_readings(shape)
            ),
        )
        for shape, where in found.items()
    )
