"""How long a prefix can be served, against a model that looks at every token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import layers, untimed

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.prefix import servable_entries, servable_prefix
from ems.layout.registration import register


def prefix(done, windows, tokens):
    return servable_prefix([np.array(each, bool) for each in done], windows, np.array(tokens))


def served(length, mine, window, tokens):
    """Tell, token by token, whether a group has what a prefix of `length` hashes needs of it."""
    owner = [at for at, n in enumerate(tokens) for _ in range(n)]
    total = sum(tokens[:length])
    needed = range(0 if window is None else max(0, total - window), total)
    return all(mine[owner[token]] for token in needed)


def brute_force(done, windows, tokens):
    return max(
        length
        for length in range(len(tokens) + 1)
        if all(
            served(length, mine, window, tokens) for mine, window in zip(done, windows, strict=True)
        )
    )


@st.composite
def groups(draw):
    hashes = draw(st.integers(1, 7))
    count = draw(st.integers(1, 3))
    tokens = draw(st.lists(st.integers(1, 5), min_size=hashes, max_size=hashes))
    windows = draw(st.lists(st.none() | st.integers(1, 12), min_size=count, max_size=count))
    mine = st.lists(st.booleans(), min_size=hashes, max_size=hashes)
    return draw(st.lists(mine, min_size=count, max_size=count)), windows, tokens


@untimed
@given(groups())
def test_the_prefix_is_the_longest_that_every_group_can_serve(drawn):
    assert prefix(*drawn) == brute_force(*drawn)


def test_without_windows_it_is_the_leading_run():
    assert prefix([[1, 1, 0, 1]], [None], [4] * 4) == 2
    assert prefix([[0, 1, 1, 1]], [None], [4] * 4) == 0
    assert prefix([[1, 1, 1, 1], [1, 0, 1, 1]], [None, None], [4] * 4) == 1


def test_a_window_needs_only_the_tail_of_the_prefix():
    # case 29, where blocks 1 and 3 of 4 were saved for the window
    full = [1, 1, 1, 1]
    assert prefix([full, [0, 1, 0, 1]], [None, 4], [4] * 4) == 4
    assert prefix([full, [0, 1, 0, 0]], [None, 4], [4] * 4) == 2
    assert prefix([full, [0, 0, 1, 0], [0, 1, 0, 0]], [None, 4, 4], [4] * 4) == 0


def test_a_window_that_begins_inside_a_block_needs_all_of_it():
    assert prefix([[0, 0, 1]], [5], [4] * 3) == 0
    assert prefix([[0, 1, 1]], [5], [4] * 3) == 3
    assert prefix([[0, 1, 1]], [8], [4] * 3) == 3
    assert prefix([[0, 1, 1]], [9], [4] * 3) == 0


def test_what_is_stored_in_no_group_ends_every_prefix():
    cache = register(
        layers([(8, 4, 2, 8)], [(8, 4, 2, 8)]),
        [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(4, [1], window=4)],
    )
    assert servable_entries(cache.groups, [[4, 4, 0, 4], [0, 4, 0, 4]]) == 2
    assert servable_entries(cache.groups, [[4, 4, 4, 4], [0, 0, 0, 4]]) == 4
    assert servable_entries(cache.groups, [[0], [0]]) == 0
    assert servable_entries(cache.groups, [[3], [3]]) == 1
