"""Parts of the engine that need no Mooncake: its URL, headers, codes, calls that end in time."""

import ctypes
import threading
import time

import pytest
from bounded import without_threads
from contracts.host_memory import MappedMemory

from ems.common.exception import InvalidArgument, PoolUnavailable, RequestTimeout
from ems.pool import registry
from ems.pool.mooncake import calls as calls_module
from ems.pool.mooncake import codes, settings
from ems.pool.mooncake.calls import Calls
from ems.pool.mooncake.header import HEADER_NBYTES, header_at, object_nbytes, seal, verified
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.url import PoolUrl

MIB = 1 << 20


def settings_of(text):
    return MooncakeSettings.from_url(PoolUrl.parse(text))


def test_a_url_says_where_the_master_is_and_everything_else_has_a_default():
    found = settings_of("mooncake://node-1:50051")
    assert found.master == "node-1:50051"
    assert (found.staging_nbytes, found.segment_nbytes) == (256 * MIB, 0)
    assert (found.host, found.protocol, found.device) == (None, "tcp", "")
    assert found.metrics_port is None
    assert found.checksum


def test_a_url_chooses_staging_segment_host_and_metrics():
    found = settings_of(
        "mooncake://[::1]:5?staging=1MiB&segment=16MiB&host=10.0.0.7&metrics=9003&protocol=tcp"
    )
    assert found.master == "[::1]:5"
    assert (found.staging_nbytes, found.segment_nbytes) == (MIB, 16 * MIB)
    assert (found.host, found.metrics_port) == ("10.0.0.7", 9003)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mooncake://", "host and port are needed"),
        ("mooncake://node-1", "host and port are needed"),
        ("mooncake://:50051", "host and port are needed"),
        ("mooncake://a:1/path", "the path '/path' has no meaning"),
        ("mooncake://a:1?capacity=1GiB", "'capacity' is unknown; known are"),
        ("mooncake://a:1?staging=63KiB", "staging is 64512 bytes; at least 65536"),
        ("mooncake://a:1?staging=0", "staging is 0 bytes"),
        ("mooncake://a:1?staging=much", "staging: 'much' is not a size"),
        ("mooncake://a:1?segment=1MiB", "segment is 1048576 bytes; at least 16777216"),
        ("mooncake://a:1?metrics=", "metrics is ''"),
        ("mooncake://a:1?metrics=70000", "metrics is '70000'"),
        ("mooncake://a:1?metrics=-1", "metrics is '-1'"),
        ("mooncake://a:1?checksum=yes", "checksum is 'yes'; it is on or off"),
        ("mooncake://a:1?protocol=udp", "protocol is 'udp'; known are tcp, rdma, ascend"),
    ],
)
def test_a_wrong_url_is_refused_in_words(url, words):
    with pytest.raises(InvalidArgument, match="the pool ") as refusal:
        settings_of(url)
    assert words in str(refusal.value)


def test_no_segment_is_zero_bytes():
    assert settings_of("mooncake://a:1?segment=0").segment_nbytes == 0


def test_rdma_without_a_device_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "_INFINIBAND", tmp_path)
    with pytest.raises(InvalidArgument, match="has no device"):
        settings_of("mooncake://a:1?protocol=rdma")
    (tmp_path / "mlx5_0").mkdir()
    assert settings_of("mooncake://a:1?protocol=rdma&device=mlx5_0").device == "mlx5_0"
    with pytest.raises(InvalidArgument, match="has mlx5_0, not mlx5_1"):
        settings_of("mooncake://a:1?protocol=rdma&device=mlx5_0,mlx5_1")


def test_a_missing_mooncake_is_named(monkeypatch):
    monkeypatch.setitem(registry._ENGINES, "mooncake", "no_such_package.engine:Pool")
    with pytest.raises(InvalidArgument, match=r"pip install 'ems\[mooncake\]'"):
        registry.open_pool("mooncake://a:1", MappedMemory())


def test_a_code_is_told_in_words_and_an_unknown_one_by_its_number():
    assert "the master does not answer" in str(codes.failure("reading", -900, "a:1"))
    assert "an unknown code (-4242)" in str(codes.failure("reading", -4242, "a:1"))


@pytest.fixture
def entry():
    """Memory of an entry of 100 bytes, sealed."""
    content = bytes(range(100))
    memory = ctypes.create_string_buffer(object_nbytes(tokens=7, nbytes=100))
    address = ctypes.addressof(memory)
    ctypes.memmove(address + HEADER_NBYTES, content, 100)
    seal(address, "name", tokens=7, nbytes=100, checksum=True)
    return memory


def whole(entry):
    return verified(ctypes.addressof(entry), "name", size=len(entry), checksum=True)


def test_a_sealed_entry_is_verified_with_its_tokens_and_size(entry):
    header = whole(entry)
    assert (header.tokens, header.nbytes) == (7, 100)
    assert header_at(ctypes.addressof(entry), "name") == header


def test_any_wrong_byte_of_an_entry_is_noticed(entry):
    for where in range(HEADER_NBYTES + 100):
        good = entry[where]
        entry[where] = bytes([good[0] ^ 0x10])
        assert whole(entry) is None, where
        entry[where] = good


def test_an_entry_under_another_name_or_of_another_size_is_not_taken(entry):
    address = ctypes.addressof(entry)
    assert verified(address, "other", size=len(entry), checksum=True) is None
    assert verified(address, "name", size=len(entry) - 1, checksum=True) is None


def test_without_checksums_the_header_alone_is_verified(entry):
    address = ctypes.addressof(entry)
    entry[HEADER_NBYTES] = b"\xff"
    assert verified(address, "name", size=len(entry), checksum=False).tokens == 7
    seal(address, "name", tokens=7, nbytes=100, checksum=False)
    assert whole(entry).has_checksum is False
    entry[20] = b"\xff"
    assert whole(entry) is None


def test_equal_sizes_with_other_tokens_are_objects_of_different_sizes():
    assert object_nbytes(tokens=5, nbytes=1000) != object_nbytes(tokens=9, nbytes=1000)


def soon():
    return time.monotonic() + 10


def test_a_call_returns_what_its_work_returns_and_undoes_nothing():
    undone = []
    run = Calls("here").run
    assert run(lambda: 7, doing="it", deadline=soon(), undo=lambda: undone.append(1)) == 7
    assert undone == []


def test_a_call_that_fails_is_undone_once():
    undone = []
    with pytest.raises(ZeroDivisionError):
        Calls("here").run(lambda: 1 / 0, doing="it", deadline=soon(), undo=lambda: undone.append(1))
    assert undone == [1]


def test_a_call_that_is_too_late_is_undone_when_it_has_ended_and_not_before():
    gate, undone = threading.Event(), threading.Event()
    with pytest.raises(RequestTimeout, match="it at here"):
        Calls("here").run(
            lambda: gate.wait(30),
            doing="it",
            deadline=time.monotonic() + 0.05,
            undo=undone.set,
        )
    assert not undone.wait(0.1)
    gate.set()
    assert undone.wait(10)


def test_a_deadline_that_has_passed_makes_no_call():
    made, undone = [], []
    with pytest.raises(RequestTimeout):
        Calls("here").run(
            lambda: made.append(1),
            doing="it",
            deadline=time.monotonic() - 1,
            undo=lambda: undone.append(1),
        )
    assert (made, undone) == ([], [1])


def test_a_call_for_which_there_is_no_thread_is_refused_and_undone():
    undone = []
    with without_threads(), pytest.raises(PoolUnavailable, match="no thread"):
        Calls("here").run(lambda: 7, doing="it", deadline=soon(), undo=lambda: undone.append(1))
    assert undone == [1]


def test_while_a_call_hangs_others_are_refused_at_once_until_it_returns(monkeypatch):
    monkeypatch.setattr(calls_module, "_PATIENCE_SECONDS", 0.1)
    calls, gate, ended = Calls("here"), threading.Event(), threading.Event()
    with pytest.raises(RequestTimeout):
        calls.run(
            lambda: gate.wait(30),
            doing="it",
            deadline=time.monotonic() + 0.15,
            undo=ended.set,
        )
    with pytest.raises(PoolUnavailable, match="hangs"):
        calls.run(lambda: 7, doing="it", deadline=soon())
    gate.set()
    assert ended.wait(10)
    assert calls.run(lambda: 7, doing="it", deadline=soon()) == 7


def test_calls_left_behind_are_limited_in_number():
    calls, gate = Calls("here"), threading.Event()
    failures = []
    for _ in range(10):
        try:
            calls.run(lambda: gate.wait(30), doing="it", deadline=time.monotonic() + 0.01)
        except (PoolUnavailable, RequestTimeout) as error:
            failures.append(type(error))
    gate.set()
    assert failures == [RequestTimeout] * 8 + [PoolUnavailable] * 2
