"""Sizes as people write them."""

import re

from ems.common.exception import shown

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_LARGEST = 1 << 63
_STEP = 1024


def parse_nbytes(text: str) -> int:
    """Return the bytes that `text` names: "512MiB", "1.5GiB", "1GB" (10^9), "4096".

    Raises:
        ValueError: it is no size, its unit is unknown, or it is zero or beyond 2^63.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match["unit"].upper()) if match else None
    if match is None or factor is None:
        units = "KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024)"
        raise ValueError(f"{shown(text)} is not a size; write a number and one of {units}")
    whole, _, fraction = match["number"].partition(".")
    denominator: int = 10 ** len(fraction)
    nbytes, rest = divmod(int(whole + fraction) * factor, denominator)
    if rest:
        raise ValueError(f"{shown(text)} is not a whole number of bytes")
    if not 0 < nbytes < _LARGEST:
        raise ValueError(
            f"{shown(text)} is {shown(nbytes)} bytes; a size is at least 1 and below 2^63"
        )
    return nbytes


def format_nbytes(nbytes: int) -> str:
    """Return `nbytes` in the largest binary unit that keeps it at least one: "1.50 GiB"."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(value, 2) < _STEP or unit == "TiB":  # as it is printed: never "1024.00 KiB"
            break
        value /= _STEP
    return f"{nbytes} B" if unit == "B" else f"{value:.2f} {unit}"
