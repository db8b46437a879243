"""Options that several commands share, as groups that a command takes as one parameter."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, cast, get_args

import typer

from ems.common.exception import shown
from ems.common.units import parse_nbytes
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.devices import DEFAULT_DEVICES, DeviceList, parse_devices
from ems_cli.diagnostics.shape import DEFAULT_BLOCK_SIZE, Arrangement
from ems_cli.diagnostics.shape_grammar import WrittenShape, parse_groups, parse_shape
from ems_cli.diagnostics.shape_request import (
    DEFAULT_DTYPE,
    DEFAULT_HEAD_SIZE,
    DEFAULT_HEADS,
    DEFAULT_LAYERS,
    ShapeRequest,
)
from ems_cli.render.sink import Sink

EXIT_CODES: Final = (
    "\b\n"  # keeps the lines apart
    "Exit codes:\n"
    "    0  fine\n"
    "    1  the check ran and found a problem\n"
    "    2  wrong usage\n"
    "    3  device or pool unreachable, or another failure of EMS\n"
    "   70  a bug in this program; its traceback is on stderr\n"
    "  130  interrupted; what was measured so far is printed\n"
    "  141  nobody reads the output any more"
)
"""The epilog of every `--help`."""

LONGEST_SECONDS: Final = 86_400
"""No command waits longer than a day; a clock refuses what is far beyond, and infinity."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a command talks."""

    json: Annotated[bool, typer.Option("--json", help="Write the report as JSON; errors too.")] = (
        False
    )
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")
    ] = False


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Which NPUs a command works on."""

    devices: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="NPUs to use: npu:0,npu:3 or 0-7 or all.",
        ),
    ] = DEFAULT_DEVICES

    def chosen(self) -> DeviceList:
        """Return the devices.

        Raises:
            BadInput: a part of the list is no device.
        """
        return parse_devices(self.devices)


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """A model's cache and how it is split over ranks; fields as in `ShapeRequest`."""

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
    tp: Annotated[int, typer.Option(min=1, metavar="N", help="Ranks that share a layer.")] = 1
    pp: Annotated[int, typer.Option(min=1, metavar="N", help="Pipeline stages.")] = 1
    rank: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="R",
            help="Global rank of the first device: stage * tp + rank within the stage.",
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

    def asked_alike(self) -> dict[str, Any]:
        """Return the fields that a `ShapeRequest` has under the same names."""
        names = {field.name for field in fields(ShapeRequest)} & {
            field.name for field in fields(SplitOptions)
        }
        return {name: getattr(self, name) for name in names}

    def written_shape(self, block_size: int) -> WrittenShape | None:
        """Return what `shape` says, where it is given.

        Raises:
            BadInput: `shape` cannot be read, or `block_size` was chosen and says otherwise.
        """
        written = None if self.shape is None else parse_shape(self.shape)
        if written is not None and block_size not in {DEFAULT_BLOCK_SIZE, written.block_size}:
            raise BadInput(f"--shape says {written.block_size}", option="--block-size")
        return written


@dataclass(frozen=True, slots=True)
class PlaneOptions(SplitOptions):
    """How the planes of a synthetic cache look, in every command that makes one."""

    groups: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Layers that are stored apart, as in 0-30:128;31-60:64@window=1024: 0 to 30"
            " with at most 128 tokens per hash, and 31 to 60 with 64 and a window of 1024.",
        ),
    ] = None
    layout: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="How the tensors lie: separate; interleaved, a layer's planes in turns, page by"
            " page; or padded, 4 KiB between blocks.",
        ),
    ] = "separate"

    def asked_for(self, block_size: int, blocks: int | None) -> ShapeRequest:
        """Return what is asked for, to be resolved by `shape_of`.

        Raises:
            BadInput: `shape`, `groups` or `layout` cannot be read.
        """
        written = self.written_shape(block_size)
        if written is not None:
            block_size, blocks = written.block_size, blocks or written.num_blocks
        return ShapeRequest(
            **self.asked_alike(),
            block_size=block_size,
            blocks=blocks,
            written=written,
            groups=() if self.groups is None else parse_groups(self.groups),
            arrangement=self._arrangement(),
        )

    def _arrangement(self) -> Arrangement:
        for known in get_args(Arrangement):
            if self.layout == known:
                return cast("Arrangement", known)
        known = ", ".join(get_args(Arrangement))
        raise BadInput(f"{self.layout!r} is none of {known}", option="--layout")


@dataclass(frozen=True, slots=True)
class ShapeOptions(PlaneOptions):
    """How a synthetic cache looks."""

    block_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one block.")] = (
        DEFAULT_BLOCK_SIZE
    )
    blocks: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Blocks of the cache.  [default: what fits into 1 GiB]"
        ),
    ] = None

    def request(self) -> ShapeRequest:
        """Return what is asked for, to be resolved by `shape_of`.

        Raises:
            BadInput: an option cannot be read.
        """
        return self.asked_for(self.block_size, self.blocks)


def sink_for(context: typer.Context, output: OutputOptions) -> Sink:
    """Return the command's sink; `--json` and `--quiet` count before the command's name, too."""
    sink = context.find_root().obj
    if not isinstance(sink, Sink):  # the command runs outside of `create_app`
        sink = Sink()
    sink.as_json |= output.json
    sink.quiet |= output.quiet
    return sink


def numbers_of(text: str, *, option: str) -> tuple[int, ...]:
    """Return the different numbers above 0 that "16,64,128" names, in their order.

    Raises:
        BadInput: something else is among them.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [one for one in parts if not _is_number(one)]
    if wrong:
        raise BadInput(
            f"{shown(wrong[0])} is no number from 1 to {_MOST - 1}; write 16,64,128", option=option
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS and 0 < int(text) < _MOST


_MOST: Final = 1 << 24
_DIGITS: Final = 20
"""Python refuses to read numbers of thousands of them."""


def nbytes_of(text: str, *, option: str) -> int:
    """Return the bytes that the value of a size option names, as `parse_nbytes` reads it.

    Raises:
        BadInput: it is no size.
    """
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise BadInput(str(error), option=option) from error
