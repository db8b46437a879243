"""The raw copies that the library is measured against, of the very spans that it copies."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ems.device.base import Direction
from ems.layout.chunk_descs import request_of_chunks
from ems.layout.copy_plan import Spans, joined
from ems.layout.part import parts_of
from ems.layout.registration import Registration
from ems_cli.diagnostics.bench import RAW_IN, RAW_IN_TWO, RAW_OUT, RAW_OUT_TWO
from ems_cli.diagnostics.bench_calls import chunk_descs_of

RAW_NAMES: Final = {
    Direction.OUT: (RAW_OUT, RAW_OUT_TWO),
    Direction.IN: (RAW_IN, RAW_IN_TWO),
}
"""In one call on one stream, and in two calls on two."""


def raw_copies(raw: Any, spans: Spans, direction: Direction) -> dict[str, Callable[[], object]]:
    """Return the raw copies in one direction by name."""
    one, two = RAW_NAMES[direction]
    return {
        one: lambda: raw.copy(spans, direction),
        two: lambda: raw.copy_on_two_streams(spans, direction),
    }


def raw_spans(registration: Registration, blocks: Sequence[int], address: int) -> Spans:
    """Return the copies between whole blocks and entries that lie one after another from `address`.

    They are the very spans that the library makes of these blocks.
    """
    descs = chunk_descs_of(blocks, [group.block_size for group in registration.groups])
    request = request_of_chunks(registration, list(range(len(blocks))), descs, writes=False)
    found = []
    for part in parts_of(request, registration.groups, [""] * len(registration.groups)):
        ends = np.cumsum(part.nbytes)
        starts = (address + np.concatenate(([0], ends[:-1]))).astype(np.uint64)
        found.append(part.spans(np.arange(len(blocks)), starts, part.tokens))
        address += int(ends[-1])
    return joined(found)
