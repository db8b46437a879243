"""The shape of a model's cache where no cache is allocated: no blocks to count, no device."""

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from ems_cli.commands.options import nbytes_of
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import DEFAULT_BLOCK_SIZE
from ems_cli.diagnostics.shape_grammar import parse_shape
from ems_cli.diagnostics.shape_request import (
    DEFAULT_DTYPE,
    DEFAULT_HEAD_SIZE,
    DEFAULT_HEADS,
    DEFAULT_LAYERS,
    ShapeRequest,
)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A model and how it is split; fields as in `ShapeRequest`."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Take the shape from a Hugging Face config.json, or from a model known by name:"
            " qwen3-32b, deepseek-v3 and others.",
        ),
    ] = None
    layers: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, metavar="N", help=f"Layers of the model.  [default: {DEFAULT_LAYERS}]"
        ),
    ] = None
    heads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"KV heads of the model.  [default: {DEFAULT_HEADS}]"
        ),
    ] = None
    head_size: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Elements of one head.  [default: {DEFAULT_HEAD_SIZE}]"
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help=f"Element type of the cache.  [default: the model's, else {DEFAULT_DTYPE}]",
        ),
    ] = None
    block_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one block.")] = (
        DEFAULT_BLOCK_SIZE
    )
    tp: Annotated[int, typer.Option(min=1, metavar="N", help="Ranks that share a layer.")] = 1
    pp: Annotated[int, typer.Option(min=1, metavar="N", help="Pipeline stages.")] = 1
    rank: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="R",
            help="Global rank that is shown: stage * tp + rank within the stage.",
        ),
    ] = 0
    mtp: Annotated[bool, typer.Option("--mtp", help="Count the model's MTP layers as well.")] = (
        False
    )

    shape: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What one rank holds: (planes, blocks, block size, heads, head size):type:layers,"
            " (2,256,128,8,128):float16:32. Further parts behind ';', other planes of the same"
            " layers behind '+': (1,64,128,1,512)+(1,64,128,1,64):bfloat16:61.",
        ),
    ] = None

    def request(self, *, blocks: int = 1) -> ShapeRequest:
        """Return what is asked for, to be resolved by `shape_of`.

        Raises:
            BadInput: `shape` cannot be read.
        """
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        written = None if self.shape is None else parse_shape(self.shape)
        del asked["shape"]
        if written is not None:
            if self.block_size not in {DEFAULT_BLOCK_SIZE, written.block_size}:
                raise BadInput(f"--shape says {written.block_size}", option="--block-size")
            asked["block_size"] = written.block_size
        return ShapeRequest(**asked, blocks=blocks, written=written)


def rate_of(text: str, *, option: str) -> float:
    """Return the bytes per second that "20GB/s" names.

    Raises:
        BadInput: it is no rate.
    """
    size, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise BadInput(f"{text!r} is no rate; write 20GB/s", option=option)
    return float(nbytes_of(size, option=option))
