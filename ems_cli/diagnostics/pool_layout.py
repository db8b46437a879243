"""A shape as the library would register it, at made-up addresses: for arithmetic on layouts."""

from ems.layout.layer_group import LayerGroup
from ems.layout.plane import TensorFacts
from ems.layout.registration import register
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.dtypes import ITEMSIZE
from ems_cli.diagnostics.shape import CacheShape, PlaneShape

_FIRST_ADDRESS = 1 << 40
_ALIGNMENT = 2 << 20  # torch_npu gives large tensors memory in pages of 2 MiB
_MOST_NBYTES = 1 << 62
"""More has no addresses."""


def layer_group_of(shape: CacheShape) -> LayerGroup:
    """Return the one group that all layers of `shape` form without StoreLayerGroupDesc.

    Raises:
        BadInput: no memory can be as large.
    """
    if shape.num_blocks * shape.block_nbytes > _MOST_NBYTES:
        option = {"flags": "--block-size", "--shape": "--shape"}.get(shape.source, "--model")
        raise BadInput(
            f"a block of {shape.block_size} tokens takes {shape.block_nbytes} bytes, more than any"
            " memory has",
            option=option,
        )
    address = _FIRST_ADDRESS
    kvcache = []
    for layer in shape.layers:
        tensors = []
        for plane in layer.planes:
            tensors.append(_facts(shape, plane, address))
            nbytes = shape.num_blocks * shape.block_size * plane.token_nbytes
            address += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        kvcache.append(tensors)
    return register(kvcache).groups[0]


def _facts(shape: CacheShape, plane: PlaneShape, address: int) -> TensorFacts:
    width = plane.heads * plane.head_size
    return TensorFacts(
        "npu:0",
        plane.dtype,
        ITEMSIZE[plane.dtype],
        (shape.num_blocks, shape.block_size, plane.heads, plane.head_size),
        (shape.block_size * width, width, plane.head_size, 1),
        address,
    )
