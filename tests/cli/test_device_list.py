import pytest

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.devices import DeviceList, parse_devices


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("npu:0", (0,)),
        ("3", (3,)),
        ("npu:0,npu:3", (0, 3)),
        ("0-7", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("npu:2-4", (2, 3, 4)),
        ("npu:2-npu:4", (2, 3, 4)),
        (" NPU:1 , 0 ", (1, 0)),
        ("5-5", (5,)),
        ("6,0-2", (6, 0, 1, 2)),
    ],
)
def test_devices_come_in_the_order_they_were_written(text, indices):
    assert parse_devices(text).indices == indices


def test_all_stands_for_every_npu_of_the_computer():
    assert parse_devices("all").among(3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("npu", "'npu'"),
        ("npu:", "'npu:'"),
        ("0,,1", "''"),
        ("0,cuda:1", "'cuda:1'"),
        ("1,-2", "'-2'"),
        ("0,all", "'all'"),
        ("0-", "'0-'"),
        ("1.5", "'1.5'"),
        ("²", "'²'"),
        ("٣", "'٣'"),
    ],
)
def test_a_part_that_is_no_device_is_named(text, part):
    with pytest.raises(BadInput, match="is not a device") as caught:
        parse_devices(text)
    assert str(caught.value).startswith(part)
    assert caught.value.option == "--devices"


def test_a_range_that_runs_backwards_is_refused():
    with pytest.raises(BadInput, match="'7-0' in '7-0' runs backwards"):
        parse_devices("7-0")


@pytest.mark.parametrize("text", ["0,1,0", "0-3,2", "npu:1,1"])
def test_a_device_that_comes_twice_is_refused(text):
    with pytest.raises(BadInput, match=r"npu:\d comes twice"):
        parse_devices(text)


def test_a_range_that_would_fill_memory_is_refused_at_once():
    with pytest.raises(BadInput, match="beyond npu:1023"):
        parse_devices("0-99999999999999999999")


def test_a_device_that_the_computer_lacks_is_named():
    with pytest.raises(BadInput, match="npu:2 does not exist; there is npu:0 to npu:1"):
        DeviceList((0, 2)).among(2)


@pytest.mark.parametrize("text", ["all", "0"])
def test_a_computer_without_an_npu_says_so(text):
    with pytest.raises(BadInput, match="this computer has no NPU"):
        parse_devices(text).among(0)
