"""Descriptions as processes leave them, with figures that are easy to check."""

from pathlib import Path

from ems.cc_v1.cc_config import CcConfig_v1
from ems.config import EmsConfig, read_settings
from ems.layout.plane import TensorFacts
from ems.layout.registration import register
from ems.telemetry.description import about, registration_facts
from ems_cli.diagnostics.process_figures import process_figures

SAVE = {
    "calls": 40,
    "failed": 0,
    "hashes": 40,
    "nbytes": 40 << 20,
    "seconds": 0.5,
    "hashes_by_fate": {"done": 40},
    "failures_by_code": {},
    "seconds_by_phase": {"pool": 0.1},
}
LOAD = {
    **SAVE,
    "calls": 20,
    "hashes": 80,
    "nbytes": 30 << 20,
    "hashes_by_fate": {"done": 30, "absent": 40, "behind_a_miss": 10},
}
_COUNTERS = {"save": SAVE, "load": LOAD}
POOL = {
    "capacity_nbytes": 64 << 20,
    "backed_nbytes": 48 << 20,
    "used_nbytes": 40 << 20,
    "reserved_nbytes": 2 << 20,
    "held_nbytes": 1 << 20,
    "largest_free_nbytes": 8 << 20,
    "entries": 38,
}


def registered(*, layers=2, dtype="float16", block_size=128, groups=None):
    itemsize = {"float16": 2, "bfloat16": 2, "int8": 1}[dtype]
    tensors = [
        [
            TensorFacts(
                "npu:1",
                dtype,
                itemsize,
                (16, block_size, 8, 128),
                (block_size * 1024, 1024, 128, 1),
                (1 << 40) + (layer * 2 + plane << 30),
            )
            for plane in range(2)
        ]
        for layer in range(layers)
    ]
    return registration_facts(register(tensors, groups, device_id=1))


def described(*, pid=4242, process_start=99, cache=None, **changes):
    """Return a description.

    `changes` are fields of CcConfig_v1 or of the description; or save, load and evictions.
    """
    save, load = ({**usual, **changes.pop(name, {})} for name, usual in _COUNTERS.items())
    evictions = changes.pop("evictions", 2)
    fields = {"rank_id": 3, "device_id": 1, "model_id": "some-model", "tp_world_size": 8}
    fields |= {"rank_in_tp_group": 3}
    names = CcConfig_v1.__dataclass_fields__
    own = {name: changes.pop(name) for name in list(changes) if name in names}
    tenant = changes.pop("access_id", None)
    config = EmsConfig(
        cc_config_v1=CcConfig_v1(**{**fields, **own}), access_id=tenant, pool="memory://"
    )
    return {
        "schema": 1,
        "pid": pid,
        "process_start": process_start,
        "started": 1000.0,
        "host": "node-a",
        "python": "3.11.7",
        "packages": {"ems": "0.1.0", "torch": "2.13.0", "torch_npu": "2.13.0"},
        "python_hash_seed": "0",
        **about(read_settings(config)),
        "visible_devices": None,
        "registration": registered(**(cache or {})),
        "pool": {**POOL, "evictions": evictions},
        "counters": {"save": save, "load": load},
        "written": 4597.0,
        **changes,
    }


def figures(**changes):
    return process_figures(
        described(**changes), file=Path("/run/ems/4242.json"), state="alive", now=4600.0
    )
