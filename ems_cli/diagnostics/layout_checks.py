"""Checks of a cache's layout: what the library refuses, and what it takes but deserves a look.

Pure functions over facts; whatever is broken is one FAIL among the other checks, not the end.
"""

from collections.abc import Sequence
from typing import Any

from ems.common.exception import InvalidArgument
from ems.layout.ambiguity import documented_reading, other_readings
from ems.layout.overlap import overlapping_pairs, share_only_equal_blocks
from ems.layout.partition import partition_of
from ems.layout.plane import Plane, TensorFacts
from ems_cli.diagnostics.check import Check, Verdict, passed
from ems_cli.diagnostics.shape import layers_text
from ems_cli.diagnostics.tensor_checks import (
    Tensor,
    and_others,
    distinct,
    tensor_checks,
    tensors_of,
)


def layout_checks(
    kvcache: Sequence[Sequence[TensorFacts]], *, device: int, groups: Any = None
) -> tuple[Check, ...]:
    """Return every check of layers × planes that are to be registered on npu:`device`.

    `groups` is what would be passed as `store_layer_group_desc`.
    """
    tensors = tensors_of(kvcache)
    if not tensors:
        return (Check("tensors", Verdict.FAIL, "none", "at least one layer of one tensor", _ADD),)
    whole = [tensor for tensor in tensors if tensor.has_blocks]
    parts = _partition(len(kvcache), groups)
    return (
        _device(tensors, device),
        *tensor_checks(tensors),
        _block_size(whole, parts),
        _block_count(whole),
        _overlap(whole, parts),
        _groups(parts, len(kvcache)),
        _ambiguity(whole),
    )


_ADD = "pass kvcache as a list of layers, each a list of tensors"
_Parts = list[tuple[int, ...]]


def _partition(layers: int, groups: Any) -> "_Parts | str":
    """Return the layers of each group, or why there are none."""
    try:
        return [part[0] for part in partition_of(layers, groups)]
    except InvalidArgument as error:
        return str(error)


def _device(tensors: Sequence[Tensor], device: int) -> Check:
    name, wanted = "device", f"all on npu:{device}, the device_id of the configuration"
    elsewhere = [tensor for tensor in tensors if tensor.facts.device != f"npu:{device}"]
    if not elsewhere:
        return passed(name, f"npu:{device}", wanted)
    found = and_others(f"{elsewhere[0].where} on {elsewhere[0].facts.device}", len(elsewhere) - 1)
    together = len({tensor.facts.device for tensor in tensors}) == 1
    # the library follows the tensors where they are all on one NPU, and warns
    lenient = together and elsewhere[0].facts.device.startswith("npu:")
    verdict = Verdict.WARN if lenient else Verdict.FAIL
    fix = "device_id counts the visible NPUs (ASCEND_RT_VISIBLE_DEVICES); allocate there"
    return Check(name, verdict, found, wanted, fix)


def _block_size(tensors: Sequence[Tensor], parts: "_Parts | str") -> Check:
    name, wanted = "block size", "one number of tokens per group of layers"
    fix = "put layers with other block sizes into groups of their own"
    groups = [tuple({tensor.layer for tensor in tensors})] if isinstance(parts, str) else parts
    for layers in groups:
        members = [tensor for tensor in tensors if tensor.layer in layers]
        odd = [tensor for tensor in members if tensor.shape[1] != members[0].shape[1]]
        if odd:
            found = (
                f"{odd[0].where} has {odd[0].shape[1]} tokens, {members[0].where} "
                f"{members[0].shape[1]}"
            )
            return Check(name, Verdict.FAIL, and_others(found, len(odd) - 1), wanted, fix)
    return passed(name, distinct(f"{tensor.shape[1]} tokens" for tensor in tensors), wanted)


def _block_count(tensors: Sequence[Tensor]) -> Check:
    name, wanted = "block count", "the same in all tensors"
    counts = sorted({tensor.shape[0] for tensor in tensors})
    if len(counts) < 2:  # noqa: PLR2004 - one number, or no tensor that has any
        return passed(name, distinct(f"{count} blocks" for count in counts), wanted)
    fewest = next(tensor for tensor in tensors if tensor.shape[0] == counts[0])
    found = f"{counts[0]} to {counts[-1]}; {fewest.where} has the fewest"
    fix = f"only blocks 0 to {counts[0] - 1} can be saved and loaded; allocate all alike"
    return Check(name, Verdict.WARN, found, wanted, fix)


def _overlap(tensors: Sequence[Tensor], parts: "_Parts | str") -> Check:
    name, wanted = "overlap", "no byte in two tensors"
    groups = [] if isinstance(parts, str) else parts
    group_of = {layer: index for index, layers in enumerate(groups) for layer in layers}
    once: dict[tuple[int, int, int, int], Plane] = {}
    for tensor in tensors:
        plane = tensor.as_plane()
        if plane.block_stride >= plane.block_nbytes:
            place = (plane.address, plane.num_blocks, plane.block_stride, plane.block_nbytes)
            once.setdefault(place, plane)
    pairs = [
        sorted(pair, key=lambda plane: (plane.layer, plane.index))
        for pair in overlapping_pairs(list(once.values()))
    ]
    wrong = [
        (one, other)
        for one, other in pairs
        if group_of.get(one.layer) == group_of.get(other.layer)
        or not share_only_equal_blocks(one, other)
    ]
    if not wrong:
        repeated = len(tensors) - len(once)
        found = f"none; {repeated} tensors registered again" if repeated else "none"
        if pairs:
            found = f"{len(pairs)} pairs of tensors, block by block, of different groups"
        return passed(name, found, wanted)
    one, other = wrong[0]
    found = (
        f"{other.name} ({other.address:#x}-{other.end:#x}) and "
        f"{one.name} ({one.address:#x}-{one.end:#x})"
    )
    return Check(name, Verdict.FAIL, found, wanted, "give every tensor memory of its own")


def _groups(parts: "_Parts | str", layers: int) -> Check:
    name, wanted = "groups", f"every layer of {layers} in exactly one group"
    if isinstance(parts, str):
        return Check(name, Verdict.FAIL, parts, wanted, "mend store_layer_group_desc")
    covered = ", ".join(f"[{layers_text(ids)}]" for ids in parts[:3])
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""  # noqa: PLR2004 - as shown
    return passed(name, f"{len(parts)}: layers {covered}{more}", wanted)


def _ambiguity(tensors: Sequence[Tensor]) -> Check:
    name, wanted = "reading", "no other usual layout has this shape"
    shapes = list(dict.fromkeys(tensor.shape for tensor in tensors))
    doubtful = [shape for shape in shapes if other_readings(shape)]
    if not doubtful:
        return passed(name, distinct(str(documented_reading(shape)) for shape in shapes), wanted)
    others = ", ".join(reading.name for reading in other_readings(doubtful[0]))
    found = f"{list(doubtful[0])} is read as ND; also fits {others}"
    fix = "compare with the code that allocates the cache; dimension 1 must be the tokens"
    return Check(name, Verdict.WARN, and_others(found, len(doubtful) - 1), wanted, fix)
