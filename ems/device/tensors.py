"""Reads what registration needs of a tensor, once."""

from collections.abc import Sequence
from typing import Any

import torch
import torch_npu

from ems.common.exception import InvalidArgument, shown
from ems.layout.plane import TensorFacts


def read_kvcache(kvcache: Any) -> list[list[TensorFacts]]:
    """Return the facts of `kvcache`: a list, by layer, of lists of tensors.

    Raises:
        InvalidArgument: it is nested otherwise, empty somewhere, or holds something that is no
            tensor; the position is named.
    """
    layers = _as_list("kvcache", kvcache, "a list of layers")
    return [
        [
            _facts(f"kvcache[{layer}][{index}]", tensor)
            for index, tensor in enumerate(
                _as_list(f"kvcache[{layer}]", tensors, "a list of tensors, such as [K, V]")
            )
        ]
        for layer, tensors in enumerate(layers)
    ]


def _as_list(where: str, value: Any, wanted: str) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{where} must be {wanted}, not a tensor of {list(value.shape)}")
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{where} must be {wanted}, not {shown(value)}")
    if not value:
        raise InvalidArgument(f"{where} is empty")
    return value


def _facts(where: str, tensor: Any) -> TensorFacts:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{where} must be a torch.Tensor, not {shown(tensor)}")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{where} must be a dense tensor, not {tensor.layout}")
    on_npu = tensor.device.type == "npu"
    return TensorFacts(
        device=str(tensor.device),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.element_size(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        address=tensor.data_ptr(),
        npu_format=int(torch_npu.get_npu_format(tensor)) if on_npu else 2,
    )
