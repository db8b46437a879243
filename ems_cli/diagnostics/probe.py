"""Attempts that may crash or hang, each made in a process of its own: `python -m …probe WHAT`.

A probe writes one JSON object per step on stdout as soon as the step is done, so that whoever
reads knows how far it came.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import Any, Final

_POOL_SECONDS = 10.0
_FEW_CHARACTERS = 600


def tell(step: str, **facts: Any) -> None:
    """Write what a step found."""
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def runtime() -> None:
    """Tell which CANN runtime there is."""
    from ems import simulator  # noqa: PLC0415 - each probe imports what it tries

    try:
        tell("runtime", state=simulator.state())
    except simulator.CannError as error:
        tell("runtime", state="broken", error=str(error))


def npu() -> None:
    """Import torch, then torch_npu, then look at the NPUs; simulated ones where there are none."""
    from ems import device, simulator  # noqa: PLC0415 - see above

    _timed("torch")
    simulated = simulator.ensure()
    _timed("torch_npu")
    ascend = device.load()
    synthetic = import_module("ems.device.synthetic")
    count = ascend.device_count()
    tell("npus", simulated=simulated, count=count)
    for index in range(count):
        memory = synthetic.memory_of(index)
        tell(
            "memory",
            index=index,
            name=synthetic.device_name(index),
            free_nbytes=memory.free_nbytes,
            total_nbytes=memory.total_nbytes,
        )


def pool() -> None:
    """Put an entry into the pool of EMS_POOL, get it back and compare."""
    from ems.pool.registry import DEFAULT_URL  # noqa: PLC0415 - see above
    from ems_cli.diagnostics.host_pages import HostPages  # noqa: PLC0415
    from ems_cli.diagnostics.pool_trial import try_pool  # noqa: PLC0415

    url = os.environ.get("EMS_POOL") or DEFAULT_URL
    with closing(try_pool(url, HostPages(), seconds=_POOL_SECONDS)) as steps:
        for step in steps:
            tell(step)


def _timed(package: str) -> None:
    """Import a package: the very thing that is examined, and the reason for this process."""
    began = time.perf_counter()
    module = import_module(package)
    tell(package, version=module.__version__, seconds=time.perf_counter() - began)


_PROBES: Final[dict[str, Callable[[], None]]] = {"runtime": runtime, "npu": npu, "pool": pool}


def main() -> None:
    """Run the probe that is named, and tell what ended it."""
    try:
        _PROBES[sys.argv[1]]()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        text = f"{type(error).__name__}: {error}"
        tell("error", text=" ".join(text.split())[:_FEW_CHARACTERS])
    # not by the usual way: what a broken library does at exit is of no interest
    os._exit(0)


if __name__ == "__main__":
    main()
