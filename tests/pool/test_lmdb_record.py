import pytest
from hypothesis import given
from hypothesis import strategies as st

from ems.pool.lmdb.record import (
    BROKEN,
    LONG_PIECE_PAGES,
    PAGE_NBYTES,
    SHORT_PIECE_PAGES,
    Header,
    charge_of,
    piece_name,
    pieces_of,
    serial_of,
)

sizes = st.integers(1, 64 << 20) | st.integers(1, 3 * SHORT_PIECE_PAGES * PAGE_NBYTES)
piece_pages = st.sampled_from([SHORT_PIECE_PAGES, LONG_PIECE_PAGES])
PAGE_HEADER = 16
INLINE = 2000


@given(sizes, piece_pages)
def test_the_pieces_are_the_entry_end_to_end(nbytes, longest):
    at = 0
    for start, length in pieces_of(nbytes, longest):
        assert start == at
        assert length > 0
        at += length
    assert at == nbytes


@given(sizes, piece_pages)
def test_no_piece_has_more_pages_than_are_easily_found_in_a_row(nbytes, longest):
    assert all(
        length + PAGE_HEADER <= longest * PAGE_NBYTES for _, length in pieces_of(nbytes, longest)
    )


@given(sizes, piece_pages)
def test_an_entry_takes_what_it_counts_for_and_the_headers_of_pages(nbytes, longest):
    pages = sum(
        -(-(length + PAGE_HEADER) // PAGE_NBYTES)
        for _, length in pieces_of(nbytes, longest)
        if length > INLINE
    )
    shared = sum(length for _, length in pieces_of(nbytes, longest) if length <= INLINE)
    headers = PAGE_HEADER * len(pieces_of(nbytes, longest))
    pages_of_headers = -(-headers // PAGE_NBYTES)
    assert pages * PAGE_NBYTES + shared <= charge_of(nbytes) + pages_of_headers * PAGE_NBYTES


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_the_name_of_a_piece_tells_whose_it_is(serial, index):
    assert serial_of(piece_name(serial, index)) == serial


@pytest.mark.parametrize("checksum", [None, 0, 2**64 - 1])
def test_a_header_comes_back(checksum):
    header = Header(1, 2, 3, clock=4, checksum=checksum, piece_pages=SHORT_PIECE_PAGES)
    assert Header.parse(header.pack(), limit_nbytes=3) == header


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 48,
        Header(1, 2, 4, 4, 5).pack(),
        Header(1, 2, 3, 4, 5).pack()[:-1],
        b"\xff" + Header(1, 2, 3, 4, 5).pack()[1:],
        Header(1, 2, 3, 4, 5).pack()[:2] + b"\xff" + Header(1, 2, 3, 4, 5).pack()[3:],
        Header(1, 2, 3, 4, 5, piece_pages=1).pack(),
    ],
    ids=[
        "empty",
        "zeros",
        "larger than the pool",
        "cut",
        "other version",
        "other checksum",
        "other pieces",
    ],
)
def test_a_header_that_nobody_wrote_is_broken(raw):
    assert Header.parse(raw, limit_nbytes=3) is BROKEN
