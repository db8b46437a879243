import subprocess
import sys
from contextlib import closing

import pytest
from contracts.host_memory import MappedMemory
from contracts.pool_engine import soon

from ems.common.exception import InvalidArgument
from ems.pool import registry
from ems.pool.memory import MemoryPool
from ems.pool.registry import DEFAULT_URL, open_pool
from ems.pool.url import PoolUrl


def test_a_url_opens_the_engine_it_describes():
    memory = MappedMemory()
    with closing(open_pool("memory://?capacity=1MiB&segment=64KiB", memory)) as pool:
        assert isinstance(pool, MemoryPool)
        pool.check_health(deadline=soon())
        assert pool.stats().capacity_nbytes == 1 << 20
        assert memory.sizes == [64 << 10]


@pytest.mark.parametrize("url", [DEFAULT_URL, "memory://", "MEMORY:///"])
def test_the_default_is_eight_gibibytes_in_this_process(url):
    with closing(open_pool(url, MappedMemory())) as pool:
        assert pool.stats().capacity_nbytes == 8 << 30


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "not a URL"),
        ("memory", "not a URL"),
        ("memory:?capacity=8GiB", "not a URL"),
        ("8GiB", "not a URL"),
        ("://", "not a URL"),
        ("memory://[::1", "not a URL"),
        ("mooncake://host:port", "not a URL"),
        ("memory://?capacity", "not a URL"),
        ("memory://?capacity=1MiB#x", "fragment"),
        ("memory://me@?capacity=1MiB", "user"),
        (
            "redis://host:1",
            "the engine 'redis' is unknown; known are lmdb://, memory://, mooncake://",
        ),
        ("memory://?size=1MiB", "'size' is unknown; known are capacity, segment"),
        ("memory://?Capacity=1MiB", "'Capacity' is unknown"),
        ("memory://?capacity=1MiB&capacity=2MiB", "capacity is given twice"),
        ("memory://?capacity=much", "capacity: 'much' is not a size"),
        ("memory://?capacity=", "capacity: '' is not a size"),
        ("memory://?capacity=-1", "capacity: '-1' is not a size"),
        ("memory://?capacity=0", "capacity: '0' is 0 bytes"),
        ("memory://?capacity=63", "capacity is 63 bytes; at least 64"),
        ("memory://?segment=63B", "segment is 63 bytes; at least 64"),
        ("memory://here?capacity=1MiB", "neither a host nor a path"),
        ("memory://:80?capacity=1MiB", "neither a host nor a path"),
        ("memory:///dev/shm/pool", "neither a host nor a path"),
    ],
)
def test_a_wrong_url_is_refused_in_words(url, words):
    with pytest.raises(InvalidArgument, match="the pool ") as refusal:
        open_pool(url, MappedMemory())
    assert words in str(refusal.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(registry._ENGINES, "far", "no_such_package.engine:FarPool")
    with pytest.raises(InvalidArgument, match="needs the Python package no_such_package"):
        open_pool("far://host", MappedMemory())


def test_a_missing_module_of_ours_is_not_taken_for_a_package_to_install(monkeypatch):
    monkeypatch.setitem(registry._ENGINES, "far", "ems.pool.no_such_module:FarPool")
    with pytest.raises(ModuleNotFoundError):
        open_pool("far://host", MappedMemory())


def test_an_engine_is_imported_when_it_is_chosen():
    script = (
        "import ems.pool.registry, sys; "
        "sys.exit(any(name in sys.modules for name in ('ems.pool.lmdb', 'ems.pool.mooncake')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_url_is_taken_apart():
    url = PoolUrl.parse("mooncake://node-1:5000/a%20b?x=1&y=")
    assert (url.scheme, url.host, url.port, url.path) == ("mooncake", "node-1", 5000, "/a b")
    assert url.options(("x", "y", "z")) == {"x": "1", "y": ""}


def test_a_long_url_is_cut_in_error_texts():
    with pytest.raises(InvalidArgument) as refusal:
        open_pool("memory://?capacity=" + "9" * 5000, MappedMemory())
    assert len(str(refusal.value)) < 1000
