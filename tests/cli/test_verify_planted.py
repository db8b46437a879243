"""Faults planted in the library, and the kind that `verify` names."""

import ctypes
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ems.device.base import Direction
from ems.layout import part
from ems.layout.copy_plan import Spans, plan_spans
from ems.pool.base import Held
from ems.pool.faulty import Fault, FaultyPool
from ems.pool.wrapper import PoolWrapper
from ems_cli.diagnostics import verify_memory
from ems_cli.diagnostics.npu import Runtime, start_runtime
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.verify import VerifySettings
from ems_cli.diagnostics.verify_memory import CodedMemory
from ems_cli.diagnostics.verify_rank import VerifiedRank
from ems_cli.diagnostics.verify_run import verify_on

SETTINGS = VerifySettings(rounds=1, seed=3, pool=None, processes=1, faults=False)
SHAPE = ShapeRequest(layers=3, heads=2, head_size=16, block_size=8, blocks=8)
NARROW = ShapeRequest(layers=3, heads=4, head_size=8, block_size=8, blocks=8, dtype="int8")
WHOLE = "whole blocks"


@pytest.fixture(autouse=True)
def _nothing_is_behind():
    yield
    Late.behind = ()


def runtime(device_class=None):
    real = start_runtime()
    if device_class is None:
        return real
    ascend = SimpleNamespace(**{**vars(real.ascend), "AscendDevice": device_class})
    return Runtime(real.simulated, ascend, real.synthetic)


def verified(shape=SHAPE, *, device_class=None, wrap=lambda pool: pool):
    return verify_on(runtime(device_class), [(0, shape_of(shape))], SETTINGS, tell=str, wrap=wrap)


def first_fault(report, step=None):
    found = [each for each in report.steps if each.fault and step in {None, each.name}]
    assert found, [each.name for each in report.steps]
    return found[0].fault


def named(kinds_of, step=None):
    fault = first_fault(kinds_of, step)
    return fault.kind.value, fault.text


class Planner:
    """Stands for `plan_spans`: changes what it returns, in loads or in both directions."""

    def __init__(self, change):
        self.change = change

    def __call__(self, group, chunks, which, addresses, stored):
        return self.change(plan_spans(group, chunks, which, addresses, stored), group)


def by_plane(group, spans):
    """Return of each span the plane's place in the group, and the bytes into the plane."""
    first = group.plane_addresses.astype(np.int64)
    ends = first + group.num_blocks * group.plane_strides.astype(np.int64)
    device = spans.device.astype(np.int64)
    plane = np.argmax((device[:, None] >= first) & (device[:, None] < ends), axis=1)
    return plane, device - first[plane]


def moved(spans, device):
    return Spans(np.asarray(device).astype(np.uint64), spans.host, spans.nbytes)


def swapped_planes(spans, group):
    plane, offset = by_plane(group, spans)
    return moved(spans, group.plane_addresses.astype(np.int64)[plane ^ 1] + offset)


def off_by_one_block(spans, group):
    plane, offset = by_plane(group, spans)
    strides = group.plane_strides.astype(np.int64)[plane]
    next_one = offset + strides * (offset < (group.num_blocks - 1) * strides)
    return moved(spans, group.plane_addresses.astype(np.int64)[plane] + next_one)


def wrong_stride(spans, group):
    plane, offset = by_plane(group, spans)
    strides = group.plane_strides.astype(np.int64)[plane]
    block, within = offset // strides, offset % strides
    return moved(
        spans,
        group.plane_addresses.astype(np.int64)[plane] + block * (strides - strides // 4) + within,
    )


def wrong_layer(spans, group):
    plane, offset = by_plane(group, spans)
    return moved(
        spans, group.plane_addresses.astype(np.int64)[(plane + 2) % len(group.planes)] + offset
    )


def too_long(spans, group):
    del group
    return Spans(spans.device, spans.host, spans.nbytes + np.uint64(64))


def swapped_axes(spans, group):
    """Split whole blocks into heads, and let token and head exchange their places."""
    parts = []
    for device, host, nbytes in zip(spans.device, spans.host, spans.nbytes, strict=True):
        plane = group.planes[0]
        row = plane.head_size * plane.itemsize
        tokens, heads = int(nbytes) // plane.token_nbytes, plane.heads
        parts += [
            (device + (head * tokens + token) * row, host + (token * heads + head) * row, row)
            for token in range(tokens)
            for head in range(heads)
        ]
    return Spans(*(np.array(column, np.uint64) for column in zip(*parts, strict=True)))


def name_of(value):
    return getattr(value, "__name__", None)


PLANS = [
    (swapped_planes, "K/V swapped"),
    (off_by_one_block, "off by one block"),
    (wrong_stride, "wrong stride"),
    (wrong_layer, "wrong layer"),
    (swapped_axes, "axes swapped"),
]


@pytest.mark.parametrize("shape", [SHAPE, NARROW], ids=["float16", "int8"])
@pytest.mark.parametrize(("change", "kind"), PLANS, ids=name_of)
def test_a_fault_of_the_spans_in_both_directions_is_named(monkeypatch, change, kind, shape):
    monkeypatch.setattr(part, "plan_spans", Planner(change))
    found, text = named(verified(shape), WHOLE)
    assert found == kind, text


class Skewed:
    """A channel of an NPU whose spans are changed in one direction."""

    def __init__(self, device, channel, direction):
        self.device, self.channel, self.direction = device, channel, direction
        self.lanes = channel.lanes

    def close(self):
        self.channel.close()

    def start(self, spans):
        return self.channel.start(spans)


def device_with(channel_class, **more):
    class Device(runtime().ascend.AscendDevice):
        def open_channel(self, direction):
            return channel_class(self, super().open_channel(direction), direction)

    for name, value in more.items():
        setattr(Device, name, value)
    return Device


class PlannedInOneWay:
    """Lets a change of the spans work for one direction alone, by what a channel is told."""

    def __init__(self, change, way):
        self.change, self.way = change, way
        self.groups = []

    def channel(self):
        outer = self

        class Channel(Skewed):
            def start(self, spans):
                if self.direction is outer.way:
                    spans = outer.change(spans, outer.groups[-1])
                return self.channel.start(spans)

        return Channel

    def planner(self):
        def noted(group, *arguments):
            self.groups.append(group)
            return plan_spans(group, *arguments)

        return noted


@pytest.mark.parametrize("way", Direction, ids=["save", "load"])
@pytest.mark.parametrize(("change", "kind"), PLANS, ids=name_of)
def test_a_fault_of_the_spans_in_one_direction_is_named(monkeypatch, change, kind, way):
    planned = PlannedInOneWay(change, way)
    monkeypatch.setattr(part, "plan_spans", planned.planner())
    found, text = named(verified(device_class=device_with(planned.channel())))
    assert found == kind, text


def test_a_load_that_writes_too_much_is_named(monkeypatch):
    planned = PlannedInOneWay(too_long, Direction.IN)
    monkeypatch.setattr(part, "plan_spans", planned.planner())
    found, text = named(verified(device_class=device_with(planned.channel())))
    assert found == "neighbour overwritten", text


class Halved(Skewed):
    def start(self, spans):
        if self.direction is Direction.IN:
            spans = Spans(spans.device, spans.host, spans.nbytes // np.uint64(2))
        return self.channel.start(spans)


class Nothing(Skewed):
    def start(self, spans):
        if self.direction is Direction.IN:
            spans = Spans(spans.device[:1], spans.host[:1], spans.nbytes[:1])
        return self.channel.start(spans)


class Unmoved:
    """A copy that says it has ended, and has not begun."""

    def done(self):
        return True

    def check(self):
        pass


class Late(Skewed):
    """Copies into the NPU only when `catch_up` is called."""

    behind = ()

    def start(self, spans):
        if self.direction is Direction.OUT:
            return self.channel.start(spans)
        Late.behind = (*Late.behind, (self.channel, spans))
        return Unmoved()

    @staticmethod
    def catch_up():
        waiting, Late.behind = Late.behind, ()
        for channel, spans in waiting:
            copy = channel.start(spans)
            while not copy.done():
                time.sleep(0.001)
            copy.check()


class Again(Late):
    """Copies in time, and once more when the memory belongs to somebody else."""

    def start(self, spans):
        copy = self.channel.start(spans)
        if self.direction is Direction.IN:
            Late.behind = (*Late.behind, (self.channel, spans))
        return copy


@pytest.mark.parametrize(("channel", "kind"), [(Halved, "torn"), (Nothing, "nothing arrived")])
def test_a_fault_of_a_copy_is_named(channel, kind):
    found, text = named(verified(device_class=device_with(channel)))
    assert found == kind, text


def test_a_copy_that_ends_after_its_future_is_a_late_write(monkeypatch):
    monkeypatch.setattr(verify_memory, "_give_time", Late.catch_up)
    found, text = named(verified(device_class=device_with(Late)))
    assert found == "late write", text


@pytest.mark.parametrize("moment", ["as its blocks are written anew", "between a save and a load"])
def test_a_copy_that_comes_again_is_a_late_write(monkeypatch, moment):
    if moment.startswith("as"):
        late_after(monkeypatch, CodedMemory, "fill")
    else:
        late_after(monkeypatch, VerifiedRank, "check_entries")
    found, text = named(verified(device_class=device_with(Again)))
    assert found == "late write", text


def late_after(monkeypatch, owner, name):
    original = getattr(owner, name)

    def then_late(self, *arguments):
        original(self, *arguments)
        Late.catch_up()

    monkeypatch.setattr(owner, name, then_late)


class Stale(PoolWrapper):
    """Serves for every key what was stored first under any key of that size."""

    def __init__(self, inner):
        super().__init__(inner)
        self.first = {}

    def acquire(self, keys, tokens, *, deadline):
        served = []
        for key, count in zip(keys, tokens, strict=True):
            older = self.first.setdefault(count, key)
            (held,) = self.inner.acquire([older], [count], deadline=deadline)
            if not isinstance(held, Held):
                self.first[count] = key
                (held,) = self.inner.acquire([key], [count], deadline=deadline)
            served.append(held)
        return served


def test_an_older_entry_is_named_stale():
    report = verified(wrap=Stale)
    found, text = named(report, "generations under changing hashes")
    assert found == "stale", text


def test_an_entry_that_was_written_in_part_is_named_torn():
    cut = Fault("commit", nth=0, short_fraction=0.4)
    found, text = named(verified(wrap=lambda pool: FaultyPool(pool, [cut])), WHOLE)
    assert found == "torn", text


class Damaged(PoolWrapper):
    """Turns one bit of every entry round."""

    def commit(self, places):
        for place in places:
            byte = ctypes.c_uint8.from_address(place.address + 37)
            byte.value ^= 4
        self.inner.commit(places)


def test_a_single_bit_is_found_and_is_garbage():
    found, text = named(verified(wrap=Damaged), WHOLE)
    assert (found, "K in the saved entry token 0 head 1 dim 2" in text) == ("garbage", True), text


def test_without_a_fault_nothing_is_found():
    report = verified()
    assert [step.fault for step in report.steps] == [None] * len(report.steps)
    assert report.verdict.value == "PASS"
