"""Element types of a KV cache, known without importing torch."""

from typing import Final

from ems.common.exception import shown
from ems_cli.diagnostics.bad_input import BadInput

ITEMSIZE: Final = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Bytes of one element, by torch's name of the type."""

_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


def dtype_named(text: str) -> str:
    """Return torch's name of the type that `text` names: "bf16" and "torch.bfloat16" are bfloat16.

    Raises:
        BadInput: no cache type has that name.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in ITEMSIZE:
        known = ", ".join(ITEMSIZE)
        raise BadInput(
            f"{shown(text)} is not an element type of a cache; one of {known}", option="--dtype"
        )
    return name
