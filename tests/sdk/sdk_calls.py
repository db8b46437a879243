"""Random calls of the SDK, in random order: right, nearly right, or anything."""

import random

import numpy as np
import torch
from bounded import within
from preamble import BS, DEV, POOL, buf, cache

from ems import (
    CcConfig,
    CcConfig_v1,
    CcFuture,
    CcKvOption,
    CcResult,
    ChunkDesc,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
    PrimaryKey,
    StoreLayerGroupDesc,
)

EXPECTED = {EmsErrorCode.EMS_INVALID_ARGUMENT, EmsErrorCode.EMS_IO_TIMEOUT}
"""The pool and the device are well, so anything else is a fault of the library."""
BLOCKS = 16


class NoIndex:
    def __index__(self):
        raise TypeError("not an index")


class Arguments:
    """Makes the arguments of saves and loads; needs no device."""

    def __init__(self, seed, addresses=range(1 << 40, (1 << 40) + 2048, 64)):
        self.random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self.addresses = list(addresses)
        self.anything = [
            *(None, True, False, 0, 1, -1, 4, 2**31, 2**63 - 1, 2**63, -(2**63), 2**70, -(2**400)),
            *(1.5, float("nan"), float("inf"), 1j, "", "a", "k" * 128, "\ud800", b"", b"\0" * 40),
            *([], [[]], [None], [1], [1, 2, 3, 4], [True], ["a"], [1.5], [[1]], (), (4, 4), {}),
            *({"start_slot": 0, "length": 4}, {1, 2}, range(4), range(0), iter([1]), object()),
            *(print, int, NoIndex(), [NoIndex()], memoryview(b"abcd"), bytearray(b"abcd"), ...),
            *(np.int64(3), np.bool_(1), np.float32(2), np.array(3), np.arange(4), np.zeros(4)),
            *(np.array([]), np.zeros((2, 2), np.int64), np.array([2**63], np.uint64)),
            *(np.array([1, "a"], object), np.array(["a"]), np.array([True, False])),
            *(torch.arange(4), torch.zeros(4), torch.tensor(3), torch.zeros(0), torch.ones(2, 2)),
            *(torch.ones(4, dtype=torch.bool), torch.zeros(1).bfloat16()),
            *(CcKvOption(), CcKvOption, CcKvOption(timeout=-1), CcKvOption(timeout="1")),
            *(CcKvOption(write_rcache=1), CcKvOption(read_local_only=None), CcResult(1, 1)),
            *(KvBufferWrapper(1, 1), [KvBufferWrapper(8, 0)]),
            *(ChunkDesc(0, 4), ChunkDesc(None, None), PrimaryKey("a"), PrimaryKey(None)),
            *(StoreLayerGroupDesc(4, [0]), [StoreLayerGroupDesc(None, None)], EmsConfig()),
        ]

    def any(self):
        return self.random.choice(self.anything)

    def chance(self, share):
        return self.random.random() < share

    def spoiled(self, arguments):
        """Return arguments of which some may be replaced, in whole or in an element."""
        spoiled = dict(arguments)
        for name, value in arguments.items():
            if self.chance(0.07):
                spoiled[name] = self.any()
            elif isinstance(value, list) and value and self.chance(0.07):
                spoiled[name] = list(value)
                spoiled[name][self.random.randrange(len(value))] = self.any()
            elif isinstance(value, list) and self.chance(0.03):
                spoiled[name] = self.random.choice([tuple(value), value[:-1], value * 2])
            elif self.chance(0.02):
                del spoiled[name]
        if self.chance(0.03):
            spoiled[self.random.choice(["mask", "token_ids", "hashs", "key_list"])] = self.any()
        return spoiled

    def option(self):
        timeout = self.random.choice([0, 0, 1, 60_000])
        return CcKvOption(self.chance(0.5), self.chance(0.2), timeout)

    def hashes(self, count):
        return [self.random.choice([-3, 1, 2, 3, 4, 2**63, "ab", b"ab"]) for _ in range(count)]

    def slots_form(self):
        offsets = [
            self.random.choice([BS, BS, BS, 1, 3, 9]) for _ in range(self.random.randint(1, 4))
        ]
        slots = self.random.sample(range(BLOCKS * BS), sum(offsets))
        if self.chance(0.7):
            start = self.random.randrange(BLOCKS * BS - len(slots))
            slots = list(range(start, start + len(slots)))
        return {"slot_mapping": slots, "hashes": self.hashes(len(offsets)), "offsets": offsets}

    def tokens_form(self):
        count = self.random.randint(1, 20)
        skipped = self.random.choice([0, 0, 4, 8, 3, count])
        return {
            "slot_mapping": self.random.sample(range(BLOCKS * BS), count),
            "token_ids": [self.random.randrange(3) for _ in range(count)],
            "mask": [int(at >= skipped) for at in range(count)],
        }

    def chunks_form(self):
        count, groups = self.random.randint(1, 3), self.random.randint(1, 2)
        descs = [
            [
                self.random.choice([None, (4 * at, 4), ChunkDesc(8 * at, 2), {"start_slot": 1}])
                for at in range(count)
            ]
            for _ in range(groups)
        ]
        return {"hashes": self.hashes(count), "chunk_descs": descs}

    def buffers_form(self):
        count = self.random.randint(1, 3)
        return {
            "key_list": self.random.sample(["a", "b", PrimaryKey("c"), "d"], count),
            "value_list": [
                [
                    KvBufferWrapper(self.random.choice(self.addresses), self.random.choice([1, 64]))
                    for _ in range(self.random.randint(1, 3))
                ]
                for _ in range(count)
            ],
        }

    def form(self):
        """Return the arguments of a save or load in one of the forms."""
        form = self.random.choice(
            [self.slots_form] * 2 + [self.tokens_form, self.chunks_form, self.buffers_form]
        )
        return form()


class Calls(Arguments):
    """Makes calls, on a cache that is registered or not."""

    def __init__(self, seed):
        self.kv = cache(blocks=BLOCKS)
        mixed = [[buf(12, shape=(2, 1, 16))], [buf(8)], [buf(8, shape=(BS, 1, 4)).to(torch.int8)]]
        groups = [StoreLayerGroupDesc(4, [0], window=4), StoreLayerGroupDesc(8, [1, 2])]
        self.caches = [(self.kv, None), (cache(layers=1, blocks=8), None), (mixed, groups)]
        self.futures = []
        raw = self.kv[0][0]
        super().__init__(seed, (raw.data_ptr() + 64 * at for at in range(32)))
        self.anything += [
            *(torch.arange(4, device=DEV), KvBufferWrapper(raw.data_ptr, 8)),
            *(self.kv, self.kv[0], raw, [[raw]], [[raw, None]], [[raw.cpu()]]),
        ]

    def transfer(self, cc):
        name = self.random.choice(["save", "load", "async_save", "async_load"])
        arguments = self.spoiled({**self.form(), "option": self.option()})
        if set(arguments) == {"key_list", "value_list", "option"} and self.chance(0.5):
            places = [arguments.pop(each) for each in ("option", "key_list", "value_list")]
            return lambda: getattr(cc, name)(*places)
        return lambda: getattr(cc, name)(**arguments)

    def exists(self, cc):
        hashes, option = self.hashes(self.random.randint(1, 4)), self.option()
        arguments = self.spoiled({"hashes": hashes, "option": option})
        return lambda: cc.exists(**arguments)

    def register(self, cc):
        kv, groups = self.random.choice(self.caches)
        arguments = self.spoiled({"kvcache": kv, "store_layer_group_desc": groups})
        if "kvcache" not in arguments or set(arguments) - {"kvcache", "store_layer_group_desc"}:
            arguments = {"kvcache": kv}
        return lambda: cc.register_kvcache(**arguments)

    def future(self, cc):
        future = self.any() if self.chance(0.2) or not self.futures else self.futures.pop()
        return lambda: self.random.choice([cc.is_ready, cc.get_result])(future)

    def init(self):
        fields = self.spoiled({"rank_id": 0, "device_id": 0, "model_id": "fuzz"})
        kind = self.random.choice([CcConfig, CcConfig_v1])
        known = {name: fields.get(name, 0) for name in ("rank_id", "device_id", "model_id")}
        config = kind(**known)
        place = self.random.choice(["cc_config", "cc_config_v1"])
        whole = EmsConfig(**{place: config}, pool=POOL, access_id=self.random.choice(["a", None]))
        given = self.any() if self.chance(0.1) else whole
        return lambda: Ems.init(given)

    def call(self):
        """Return the next call."""
        cc = Ems.get_cc()
        if cc is None:
            return self.init()
        kind = self.random.choices(
            [self.transfer, self.exists, self.future, self.register, None], [70, 12, 12, 5, 1]
        )[0]
        if cc.registration is None and self.chance(0.3):
            kind = self.register
        if kind is not None:
            return kind(cc)
        return self.random.choice([Ems.shutdown, Ems.check_health, self.init()])

    def run(self):
        result = self.call()()
        if isinstance(result, CcFuture) and self.chance(0.8):
            self.futures.append(result)
        return result


def is_sound(result):
    if isinstance(result, CcResult):
        return type(result.success) is int and 0 <= result.success <= result.total
    return result is None or isinstance(result, bool | CcFuture)


def one_call(calls):
    """Make a call; return whether it succeeded."""
    try:
        result = calls.run()
    except EmsException as failure:
        if failure.status_code() not in EXPECTED:
            raise
        text = str(failure)
        if not text or "\n" in text:
            raise AssertionError(f"no text on one line: {text!r}") from failure
        return False
    assert is_sound(result), result
    return True


def make_calls(count, seed):
    """Make that many calls; return how many succeeded. What fails tells the seed.

    Raises:
        AssertionError: a call ended otherwise than the SDK promises.
    """
    calls = Calls(seed)
    succeeded = 0
    for number in range(count):
        try:
            succeeded += within(one_call, calls)
        except BaseException as failure:
            raise AssertionError(
                f"make_calls({count}, {seed!r}), call {number}: {type(failure).__name__}: {failure}"
            ) from failure
    return succeeded
