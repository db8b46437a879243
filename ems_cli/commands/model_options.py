"""The shape of a model's cache where no cache is allocated: no blocks to count, no device."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from ems.common.exception import shown
from ems_cli.commands.options import SplitOptions, nbytes_of
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import DEFAULT_BLOCK_SIZE
from ems_cli.diagnostics.shape_request import ShapeRequest

_BITS: Final = re.compile(r"[KMGT]i?b(it)?\s*$")
"""How networks are measured; an eighth of what GB says."""


@dataclass(frozen=True, slots=True)
class ModelOptions(SplitOptions):
    """A model and how it is split; fields as in `ShapeRequest`."""

    rank: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="R",
            help="Global rank that is shown: stage * tp + rank within the stage.",
        ),
    ] = 0
    block_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one block.")] = (
        DEFAULT_BLOCK_SIZE
    )

    def request(self, *, blocks: int = 1) -> ShapeRequest:
        """Return what is asked for, to be resolved by `shape_of`.

        Raises:
            BadInput: `shape` cannot be read.
        """
        written = self.written_shape(self.block_size)
        block_size = self.block_size if written is None else written.block_size
        return ShapeRequest(
            **self.asked_alike(), block_size=block_size, blocks=blocks, written=written
        )


def rate_of(text: str, *, option: str) -> float:
    """Return the bytes per second that "20GB/s" names.

    Raises:
        BadInput: it is no rate.
    """
    size, slash, second = text.partition("/")
    if _BITS.search(size):
        raise BadInput(f"{shown(text)} is in bits; write bytes, as in 20GB/s", option=option)
    if not slash or second.strip() != "s":
        raise BadInput(f"{shown(text)} is no rate; write 20GB/s", option=option)
    return float(nbytes_of(size, option=option))
