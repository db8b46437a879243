"""What is typed: shapes, groups, lists of devices, sizes, and the URLs of pools."""

from urllib.parse import urlencode

from fuzz_made import any_text, spoiled_text

from ems.common.exception import InvalidArgument
from ems.common.units import format_nbytes, parse_nbytes
from ems.pool.lmdb.settings import LmdbSettings
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.url import PoolUrl
from ems_cli.commands.model_options import rate_of
from ems_cli.commands.options import nbytes_of, numbers_of
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.devices import parse_devices
from ems_cli.diagnostics.dtypes import ITEMSIZE
from ems_cli.diagnostics.pool_address import pool_address
from ems_cli.diagnostics.shape_grammar import parse_groups, parse_shape

UNITS = ("", "B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_URLS = (
    "memory://?capacity=64MiB&segment=16MiB",
    "lmdb:///dev/shm/pool?capacity=1GiB&staging=64MiB&checksum=off",
    "mooncake://10.0.0.1:50051?staging=64MiB&metrics=9003&host=10.0.0.2&protocol=tcp&device=a",
    "mooncake://[::1]:50051?segment=1GiB&checksum=on",
    "tiered+lmdb:///dev/shm/pool?local=1GiB",
)
_OPTIONS = ("capacity", "staging", "checksum", "segment", "metrics", "host", "protocol", "local")


def shape(random):
    """A shape that is written is read as it was meant; a spoiled one is read or refused."""
    blocks, block_size = random.randint(1, 10**6), random.randint(1, 4096)
    parts, meant = [], []
    for _ in range(random.randint(1, 3)):
        layers, tensors = random.randint(1, 70), []
        for _ in range(random.randint(1, 3)):
            sizes = random.randint(1, 3), random.randint(1, 64), random.randint(1, 2048)
            tensors.append((*sizes, random.choice(sorted(ITEMSIZE))))
        parts.append(
            "+".join(f"({p},{blocks},{block_size},{h},{s}):{d}" for p, h, s, d in tensors)
            + f":{layers}"
        )
        meant += [[(h, s, d) for p, h, s, d in tensors for _ in range(p)]] * layers
    text = random.choice(("; ", ";")).join(parts)
    if random.random() < 0.3:
        got = parse_shape(text)
        assert (got.num_blocks, got.block_size) == (blocks, block_size)
        read = [[(p.heads, p.head_size, p.dtype) for p in one.planes] for one in got.layers]
        assert read == meant
        return True
    got = parse_shape(spoiled_text(random, text))
    assert 0 < len(got.layers) <= 4096
    return True


def groups(random):
    """The same of layer groups."""
    meant, parts = [], []
    for _ in range(random.randint(1, 4)):
        ranges = [(first, first + random.randrange(40)) for first in random.sample(range(900), 2)]
        size, window = random.randint(1, 10**6), random.choice((None, 1, 4096))
        parts.append(
            ",".join(f"{a}-{b}" for a, b in ranges)
            + f":{size}"
            + ("" if window is None else f"@window={window}")
        )
        layers = tuple(layer for a, b in ranges for layer in range(a, b + 1))
        meant.append((layers, size, window))
    text = ";".join(parts)
    if random.random() < 0.3:
        got = parse_groups(text)
        assert [(one.layers, one.store_block_size, one.window) for one in got] == meant
        return True
    parse_groups(spoiled_text(random, text))
    return True


def devices(random):
    """A list of devices is as it is written, without repeats, and never long."""
    indices = sorted(random.sample(range(1024), random.randint(1, 5)))
    text = ",".join(random.choice((f"npu:{one}", str(one), f"{one}-{one}")) for one in indices)
    if random.random() < 0.3:
        assert list(parse_devices(text).indices) == indices
        return True
    got = parse_devices(spoiled_text(random, text))
    assert len(set(got.indices)) == len(got.indices) <= 1024
    return True


def sizes(random):
    """Sizes, rates and lists of numbers are positive and within bounds."""
    number = random.choice((0, 1, 7, 1024, 10**6, 2**40))
    text = f"{number}{random.choice(('', '.5', '.25'))}{random.choice(UNITS)}"
    spoiled = random.choice((text, spoiled_text(random, text), any_text(random)))
    kind = random.randrange(4)
    if kind == 0:
        nbytes = nbytes_of(spoiled, option="--capacity")
        assert 0 < nbytes < 2**63
        assert parse_nbytes(str(nbytes)) == nbytes
        assert format_nbytes(nbytes)
    elif kind == 1:
        assert rate_of(f"{spoiled}/s", option="--bandwidth") > 0
    elif kind == 2:
        assert min(numbers_of(spoiled_text(random, "16,64,128"), option="--runs")) > 0
    else:
        try:
            parse_nbytes(spoiled)
        except ValueError as error:
            raise BadInput(str(error), option="a size") from error
    return True


def pool_urls(random):
    """A URL is taken apart and judged, and what it says lies within bounds."""
    query = [
        (name, random.choice(("1GiB", "on", "off", "tcp", "9003", "0", "::1")))
        for name in random.sample(_OPTIONS, random.randrange(3))
    ]
    scheme = random.choice(("memory", "lmdb", "mooncake", "tiered+lmdb", "tiered+mooncake", "file"))
    made = f"{scheme}://{random.choice(('', 'h', 'h:1', '[::1]:9'))}/p?{urlencode(query)}"
    text = random.choice((*_URLS, made))
    if random.random() < 0.8:
        text = spoiled_text(random, text)
    url = PoolUrl.parse(text)
    assert url.port is None or 0 <= url.port < 2**16
    kind = random.randrange(4)
    if kind == 0:
        found = LmdbSettings.from_url(url)
        assert found.staging_nbytes < 2**63
    elif kind == 1:
        settings = MooncakeSettings.from_url(url)
        assert settings.master_host
    elif kind == 2:
        pool_address(text, {})
    else:
        pool_address(None, {"EMS_POOL": text})
    return True


TARGETS = {
    shape: (8, (BadInput,)),
    groups: (8, (BadInput,)),
    devices: (8, (BadInput,)),
    sizes: (10, (BadInput,)),
    pool_urls: (12, (BadInput, InvalidArgument)),
}
"""What is tried: how often, and in which errors it may end."""
