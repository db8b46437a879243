"""Which NPUs a command works on: "npu:0,npu:3", "0-7", "all"."""

import re
from dataclasses import dataclass
from typing import Final

from ems.common.exception import shown
from ems_cli.diagnostics.bad_input import BadInput

_PART = re.compile(r"(?:npu:)?(?P<first>\d+)(?:-(?:npu:)?(?P<last>\d+))?", re.ASCII)
_LARGEST = 1023
DEFAULT_DEVICES: Final = "npu:0"


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Devices by their torch index; `everything` stands for all that this computer has."""

    indices: tuple[int, ...]
    everything: bool = False

    def among(self, count: int) -> tuple[int, ...]:
        """Return the indices, in the caller's order, on a computer with `count` NPUs.

        Raises:
            BadInput: there is no NPU, or one of the indices does not exist.
        """
        if count == 0:
            raise BadInput("this computer has no NPU", option=_OPTION)
        if self.everything:
            return tuple(range(count))
        for index in self.indices:
            if index >= count:
                there = "only npu:0" if count == 1 else f"npu:0 to npu:{count - 1}"
                raise BadInput(f"npu:{index} does not exist; there is {there}", option=_OPTION)
        return self.indices


def parse_devices(text: str) -> DeviceList:
    """Return the devices that `text` names, in its order.

    Parts are separated by commas: "npu:3", "3", "0-7", "npu:0-3"; "all" stands alone.

    Raises:
        BadInput: a part is no device, a range runs backwards, or a device comes twice.
    """
    if text.strip().lower() == "all":
        return DeviceList((), everything=True)
    indices: list[int] = []
    for part in text.split(","):
        for index in _indices_in(part.strip().lower(), text):
            if index in indices:
                raise BadInput(f"npu:{index} comes twice in {shown(text)}", option=_OPTION)
            indices.append(index)
    return DeviceList(tuple(indices))


def _indices_in(part: str, text: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise BadInput(
            f"{shown(part)} in {shown(text)} is not a device; write npu:0,npu:3 or 0-7 or all",
            option=_OPTION,
        )
    first = _index(match["first"], part)
    last = _index(match["last"] or match["first"], part)
    if last < first:
        raise BadInput(f"{shown(part)} in {shown(text)} runs backwards", option=_OPTION)
    return range(first, last + 1)


def _index(digits: str, part: str) -> int:
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        raise BadInput(f"{shown(part)} is beyond npu:{_LARGEST}", option=_OPTION)
    return int(digits)


_OPTION = "--devices"
