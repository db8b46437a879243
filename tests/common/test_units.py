"""Sizes on the command line and in configuration: case 44."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ems.common.units import format_nbytes, parse_nbytes

untimed = settings(deadline=None)

FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1GB", 10**9),
        ("1.5gib", 3 * 2**29),
        ("512MiB", 512 * 2**20),
        ("4096", 4096),
        ("1", 1),
        ("100", 100),
        ("100 b", 100),
        ("  2 kB ", 2000),
        ("0.5KiB", 512),
        ("0.001KB", 1),
        ("1.10GB", 1_100_000_000),
        ("0.1TB", 10**11),
        ("9223372036854775807", 2**63 - 1),
        ("8388607TiB", 8388607 * 2**40),
    ],
)
def test_a_size_is_read_exactly(text, nbytes):
    assert parse_nbytes(text) == nbytes


@untimed
@given(st.integers(1, 10**6), st.sampled_from(sorted(FACTORS)), st.sampled_from(["", " "]))
def test_number_times_unit_comes_back_in_any_spelling(number, unit, gap):
    for spelling in (unit, unit.lower(), unit.upper()):
        assert parse_nbytes(f"{number}{gap}{spelling}") == number * FACTORS[unit]


@untimed
@given(st.integers(1, 1023), st.sampled_from([10, 20, 30, 40]))
def test_a_printed_size_is_read_back(number, power):
    nbytes = number << power
    assert parse_nbytes(format_nbytes(nbytes)) == nbytes
    assert parse_nbytes(format_nbytes(number)) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GB",
        "-1",
        "-1GB",
        "+1",
        "9e18",
        "1e3",
        "0x10",
        "1,5GB",
        "1.5.5GB",
        ".5GB",
        "1.GB",
        "1_000",
        "1 000",
        "1GBs",
        "1GiBB",
        "1PB",
        "1G",
        "1Gb/s",
        "nan",
        "inf",
        "1GB 1MB",
        "1\n2",
    ],
)
def test_what_is_no_size_is_refused_with_the_units_there_are(text):
    with pytest.raises(
        ValueError, match="is not a size; write a number and one of KB, MB"
    ) as failure:
        parse_nbytes(text)
    assert repr(text) in str(failure.value)


@pytest.mark.parametrize("text", ["0", "0GB", "0.0GiB"])
def test_nothing_is_no_size(text):
    with pytest.raises(ValueError, match="is 0 bytes; a size is at least 1"):
        parse_nbytes(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8388608TiB", "9300000TB", "9" * 400])
def test_a_size_beyond_63_bits_is_refused(text):
    with pytest.raises(ValueError, match="bytes; a size is at least 1 and below 2\\^63"):
        parse_nbytes(text)


@pytest.mark.parametrize("text", ["1.5", "0.1B", "0.1GiB", "1.0001KB", "0.0005KB"])
def test_parts_of_bytes_are_refused_not_rounded(text):
    with pytest.raises(ValueError, match="is not a whole number of bytes"):
        parse_nbytes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20 - 2**13, "1016.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (2**20, "1.00 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (5000 * 2**40, "5000.00 TiB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_fits(nbytes, text):
    assert format_nbytes(nbytes) == text
