"""How long a prefix can be served, when layer groups differ in what they keep."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ems.layout.layer_group import LayerGroup
from ems.layout.slots import Ints


def servable_prefix(
    done: Sequence[npt.NDArray[np.bool_]], windows: Sequence[int | None], tokens: Ints
) -> int:
    """Return the greatest number of leading hashes that every layer group can serve.

    Args:
        done: for each group, which hashes it has.
        windows: for each group, the tokens before the end of a prefix that it must have; None: all
            of the prefix.
        tokens: tokens of each hash.
    """
    servable = np.ones(tokens.size + 1, np.bool_)
    ends = np.concatenate(([0], np.cumsum(tokens)))
    for mine, window in zip(done, windows, strict=True):
        missing = np.concatenate(([0], np.cumsum(~mine)))
        if window is None:
            first = np.zeros(ends.size, np.int64)
        else:  # the hash that holds the first token inside the window of each prefix
            first = np.searchsorted(ends, np.maximum(ends - window, 0), side="right") - 1
        servable &= missing == missing[first]
    return int(np.flatnonzero(servable)[-1])


def servable_entries(groups: Sequence[LayerGroup], tokens: Sequence[Sequence[int]]) -> int:
    """Return how many leading hashes every group can serve, given the tokens stored in each.

    `tokens` is by group and hash, 0 where nothing is stored.
    """
    stored = np.array(tokens, np.int64)
    # what no group has ends every prefix; its length does not matter
    lengths = np.maximum(stored.max(axis=0), 1)
    return servable_prefix(list(stored > 0), [group.window for group in groups], lengths)
