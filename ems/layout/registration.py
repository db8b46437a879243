"""From the facts of a model's tensors to a registration, or to the reason why not.

Refused is what would make a wrong copy: tensors elsewhere than on one NPU, blocks whose bytes are
not dense, private formats, overlaps. Warned about is what is legal and often a mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ems.common.exception import InvalidArgument
from ems.layout import ambiguity
from ems.layout.key import digest
from ems.layout.layer_group import LayerGroup
from ems.layout.partition import GroupDesc, partition_of
from ems.layout.plane import BASE_FORMATS, FORMAT_NAMES, Plane, TensorFacts
from ems.layout.sharing import find_sharing

_LAYOUT_VERSION = 1
"""Part of every fingerprint; grows when the bytes of an entry are arranged otherwise."""
_DIMENSIONS = 4
_LAST_ADDRESS = 1 << 63


@dataclass(frozen=True)
class Registration:
    """A registered cache: addresses and metadata, no tensor."""

    device_index: int
    planes: tuple[tuple[Plane, ...], ...]
    """By layer and position in the layer's list, repeated tensors included."""
    groups: tuple[LayerGroup, ...]
    warnings: tuple[str, ...]

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token over all groups, each tensor once."""
        return sum(group.token_nbytes for group in self.groups)


def register(
    kvcache: Sequence[Sequence[TensorFacts]],
    store_layer_group_desc: Any = None,
    *,
    device_id: int | None = None,
) -> Registration:
    """Return the registration of `kvcache`: layers × planes.

    Each tensor is `[num_blocks, block_size, heads, head_size]`, or `[num_blocks, block_size,
    width]`, which is taken as one head. Blocks may be padded or interleaved; the bytes of one block
    must be dense. `device_id` is what the configuration says; another device is only warned about.

    Raises:
        InvalidArgument: naming layer, plane and what is wrong with it.
    """
    _check_not_empty(kvcache)
    _check_devices(kvcache)
    planes = tuple(
        tuple(_plane(layer, index, facts) for index, facts in enumerate(tensors))
        for layer, tensors in enumerate(kvcache)
    )
    parts = partition_of(len(planes), store_layer_group_desc)
    groups = find_sharing([_group(index, part, planes) for index, part in enumerate(parts)])
    device_index = int(kvcache[0][0].device.partition(":")[2] or 0)
    return Registration(
        device_index,
        planes,
        groups,
        tuple(_warnings(kvcache, planes, groups, device_index, device_id)),
    )


def _check_not_empty(kvcache: Sequence[Sequence[TensorFacts]]) -> None:
    if not kvcache:
        raise InvalidArgument("kvcache is empty")
    for layer, tensors in enumerate(kvcache):
        if not tensors:
            raise InvalidArgument(f"kvcache[{layer}] (layer {layer}) has no tensors")


def _check_devices(kvcache: Sequence[Sequence[TensorFacts]]) -> None:
    first = kvcache[0][0].device
    for layer, tensors in enumerate(kvcache):
        for index, facts in enumerate(tensors):
            where = f"kvcache[{layer}][{index}] (layer {layer} plane {index})"
            if facts.device.partition(":")[0] != "npu":
                raise InvalidArgument(
                    f"{where} is on device {facts.device}; registered tensors must be on an NPU"
                )
            if facts.device != first:
                raise InvalidArgument(
                    f"{where} is on {facts.device}, kvcache[0][0] on {first}; "
                    "one registration is one NPU"
                )


def _plane(layer: int, index: int, facts: TensorFacts) -> Plane:
    def refuse(reason: str) -> InvalidArgument:
        return InvalidArgument(
            f"kvcache[{layer}][{index}] (layer {layer} plane {index}): {reason}; "
            f"shape {list(facts.shape)}, strides {list(facts.strides)}, {facts.dtype}"
        )

    shape, strides = _as_four_dimensions(facts)
    if len(shape) != _DIMENSIONS:
        hint = " (pass K and V as two tensors)" if len(shape) > _DIMENSIONS else ""
        raise refuse(
            f"it has {len(shape)} dimensions instead of "
            f"[num_blocks, block_size, heads, head_size]{hint}"
        )
    if min(shape) < 1:
        raise refuse("it is empty")
    if facts.npu_format not in BASE_FORMATS:
        name = FORMAT_NAMES.get(facts.npu_format, f"number {facts.npu_format}")
        raise refuse(
            f"its NPU format is {name}, whose bytes do not lie as its shape says; "
            "cast it with torch_npu.npu_format_cast(tensor, 2)"
        )
    num_blocks, block_size, heads, head_size = shape
    block_elements = block_size * heads * head_size
    dense = (heads * head_size, head_size, 1)
    if any(n > 1 and s != d for n, s, d in zip(shape[1:], strides[1:], dense, strict=True)):
        raise refuse("the elements of one block are not dense in row-major order")
    block_stride = strides[0] if num_blocks > 1 else block_elements
    if block_stride < block_elements:
        raise refuse("its blocks overlap")
    plane = Plane(
        layer,
        index,
        facts.address,
        num_blocks,
        block_size,
        heads,
        head_size,
        facts.dtype,
        facts.itemsize,
        block_stride * facts.itemsize,
    )
    if plane.address < 1 or plane.end > _LAST_ADDRESS:
        raise refuse(f"its addresses {plane.address:#x} to {plane.end:#x} are impossible")
    return plane


def _as_four_dimensions(facts: TensorFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides, with the heads that a fused [blocks, block_size, width] lacks."""
    if len(facts.shape) != _DIMENSIONS - 1:
        return facts.shape, facts.strides
    blocks, tokens, width = facts.shape
    return (blocks, tokens, 1, width), (*facts.strides[:2], width, facts.strides[2])


def _group(index: int, part: GroupDesc, planes: Sequence[Sequence[Plane]]) -> LayerGroup:
    members = [plane for layer in part.layer_ids for plane in planes[layer]]
    first = members[0]
    for plane in members:
        if plane.block_size != first.block_size:
            raise InvalidArgument(
                f"kvcache[{plane.layer}][{plane.index}] has blocks of {plane.block_size} tokens, "
                f"{first.name} of {first.block_size}; layers with different block sizes "
                "belong into different groups of store_layer_group_desc"
            )
    once: dict[tuple[int, ...], Plane] = {}
    description = []
    for plane in members:
        place = _bytes_of(plane)
        same_as = list(once).index(place) if place in once else None
        once.setdefault(place, plane)
        description.append(
            [plane.layer, plane.index, plane.dtype, plane.heads, plane.head_size, same_as]
        )
    return LayerGroup(
        index,
        part.layer_ids,
        first.block_size,
        min(plane.num_blocks for plane in members),
        part.store_block_size,
        tuple(once.values()),
        digest([_LAYOUT_VERSION, first.block_size, description]),
        index,
        part.window,
    )


def _bytes_of(plane: Plane) -> tuple[int, ...]:
    return (
        plane.address,
        plane.num_blocks,
        plane.block_size,
        plane.token_nbytes,
        plane.block_stride,
    )


def _warnings(
    kvcache: Sequence[Sequence[TensorFacts]],
    planes: Sequence[Sequence[Plane]],
    groups: Sequence[LayerGroup],
    device_index: int,
    device_id: int | None,
) -> list[str]:
    found = []
    if device_id is not None and device_index != device_id:
        found.append(
            f"the tensors are on npu:{device_index}, the configured device_id is {device_id}"
        )
    for group in groups:
        found += _group_warnings(group, [p for layer in group.layer_ids for p in planes[layer]])
    return found + ambiguity.shape_warnings(kvcache)


def _group_warnings(group: LayerGroup, members: Sequence[Plane]) -> list[str]:
    found = []
    most = max(members, key=lambda plane: plane.num_blocks)
    least = min(members, key=lambda plane: plane.num_blocks)
    if most.num_blocks != least.num_blocks:
        found.append(
            f"group {group.index}: {most.name} has {most.num_blocks} blocks, {least.name} only "
            f"{least.num_blocks}; only the first {group.num_blocks} can be used"
        )
    # the planes of the group are the first of their bytes, so these are the later ones
    if repeats := [plane for plane in members if plane not in group.planes]:
        original = next(p for p in group.planes if _bytes_of(p) == _bytes_of(repeats[0]))
        found.append(
            f"group {group.index}: {repeats[0].name} is the same tensor as {original.name}; "
            f"{len(repeats)} repeated in all, each is moved once"
        )
    return found
