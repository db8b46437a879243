"""The four block sizes that are easily taken for one another, as a registration has them."""

from dataclasses import dataclass

from ems.layout.layer_group import LayerGroup
from ems.layout.registration import Registration
from ems_cli.diagnostics.shape import layers_text


@dataclass(frozen=True, slots=True)
class BlockSize:
    """One of them."""

    name: str
    """Either "kernel", "engine", "hash" or "store"."""
    tokens: str
    """A number, or what is known of it."""
    meaning: str
    """For this registration, in a sentence."""


def block_sizes(registration: Registration) -> tuple[BlockSize, ...]:
    """Return what each block size is for a registered cache."""
    sizes = sorted({group.block_size for group in registration.groups})
    kernel = " and ".join(map(str, sizes))
    several = len(registration.groups) > 1
    return (
        BlockSize(
            "kernel",
            kernel,
            f"dimension 1 of the tensors: slot s is token s % {kernel} of block s // {kernel}"
            if len(sizes) == 1
            else "dimension 1 of the tensors, by layer group: only chunk_descs can name slots",
        ),
        BlockSize(
            "engine",
            f"{kernel} × n" if len(sizes) == 1 else "?",
            "what the engine allocates at once; no tensor tells, and slots do not depend on it",
        ),
        BlockSize(
            "hash",
            "offsets[i]",
            f"what a call says of each hash; with token_ids it is {kernel}",
        ),
        *(_store(group, several=several) for group in registration.groups),
    )


def _store(group: LayerGroup, *, several: bool) -> BlockSize:
    where = f"layers {layers_text(group.layer_ids)}: " if several else ""
    window = "" if group.window is None else f"; a window of {group.window} tokens is enough"
    if group.store_block_size is None:
        return BlockSize("store", "any", f"{where}no description limits the tokens of one hash")
    small = group.store_block_size < group.block_size
    whole = ", less than a block: whole blocks are refused" if small else ""
    return BlockSize(
        "store",
        str(group.store_block_size),
        f"{where}most tokens kept under one hash{whole}{window}",
    )
