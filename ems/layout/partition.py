"""From the caller's descriptions of layer groups to a partition of the layers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ems.common.exception import InvalidArgument, shown
from ems.common.store_layer_group import StoreLayerGroupDesc


class GroupDesc(NamedTuple):
    """One layer group, checked."""

    layer_ids: tuple[int, ...]
    store_block_size: int | None
    """The most tokens of one hash; None without a description: no limit."""
    window: int | None
    """Tokens at the end of a prefix that are needed of it; None: all."""


def partition_of(layers: int, descriptions: Any) -> "Sequence[GroupDesc]":
    """Return the group descriptions, checked: a partition of that many layers.

    Raises:
        InvalidArgument: naming the description, its field and what is wrong with it.
    """
    if descriptions is None:
        return [GroupDesc(tuple(range(layers)), None, None)]
    if not isinstance(descriptions, Sequence) or isinstance(descriptions, str | bytes):
        raise InvalidArgument(
            f"store_layer_group_desc must be a list of StoreLayerGroupDesc, "
            f"not {shown(descriptions)}"
        )
    if not descriptions:
        raise InvalidArgument("store_layer_group_desc is empty")
    owner: dict[int, int] = {}
    parts = [_part(at, each, layers, owner) for at, each in enumerate(descriptions)]
    if missing := [layer for layer in range(layers) if layer not in owner]:
        raise InvalidArgument(
            f"store_layer_group_desc leaves out layer {missing[0]}: the groups must cover "
            f"all {layers} layers ({len(missing)} missing)"
        )
    return parts


def _part(at: int, description: Any, layers: int, owner: dict[int, int]) -> GroupDesc:
    where = f"store_layer_group_desc[{at}]"
    if not isinstance(description, StoreLayerGroupDesc):
        raise InvalidArgument(f"{where} must be a StoreLayerGroupDesc, not {shown(description)}")
    size: Any = description.store_block_size
    ids: Any = description.layer_ids
    if type(size) is not int or size < 1:
        raise InvalidArgument(f"{where}.store_block_size must be an int above 0, not {shown(size)}")
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not ids:
        raise InvalidArgument(f"{where}.layer_ids must be a list of layers, not {shown(ids)}")
    for position, layer in enumerate(ids):
        if type(layer) is not int or not 0 <= layer < layers:
            raise InvalidArgument(
                f"{where}.layer_ids[{position}] is {shown(layer)}; layers are 0 to {layers - 1}"
            )
        if layer in owner:
            raise InvalidArgument(
                f"{where}.layer_ids[{position}]: layer {layer} is in "
                f"store_layer_group_desc[{owner[layer]}] already"
            )
        owner[layer] = at
    window: Any = description.window
    if window is not None and (type(window) is not int or window < 1):
        raise InvalidArgument(f"{where}.window must be an int above 0 or None, not {shown(window)}")
    return GroupDesc(tuple(ids), size, window)
