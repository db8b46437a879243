"""Faults, delays and counters of the simulated runtime in this process.

The knobs are those of the variables EMS_SIM_* that may change while the runtime runs:

FAIL_COPY        "N", "N:code" or "every:N": the Nth copy from now on fails half-way
FAIL_LAUNCH      the same, for the call that launches a copy or an operator
DELAY            "what=microseconds[,what=microseconds...]"; what is the name of an operation
                 (copy_h2d, copy_d2h, copy_d2d, memset, event_record, aclnnInplaceCopy, ...),
                 "*" for every operation, or "stream:N" for the Nth stream that was created
                 (aclrtStreamGetId tells which one a stream is)
GBPS             the most that copies between host and device reach, in 10^9 bytes per second;
                 GBPS_H2D, GBPS_D2H and GBPS_D2D for one direction
COPY_LATENCY_US  what every copy takes at the least
OP_LATENCY_US    what every operator takes at the least

An empty value is the default: no fault, no delay, no limit.
"""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

__all__ = ["counter", "knobs", "set_fault", "setting"]

_TEXT_ROOM = 256


def set_fault(knob: str, value: str) -> None:
    """Change a knob; what it counts is counted from now on.

    Raises:
        ValueError: there is no such knob that may be changed, or it does not understand `value`.
            Nothing has changed.
    """
    if _runtime().ems_simulator_set(knob.encode(), value.encode()):
        raise ValueError(f"{knob}={value!r}: no knob that may change, or not a value of it")


def setting(knob: str) -> str:
    """Return what a knob was last set to, here or by its variable; "" for its default.

    Raises:
        ValueError: there is no such knob.
    """
    text = ctypes.create_string_buffer(_TEXT_ROOM)
    if _runtime().ems_simulator_setting(knob.encode(), text, _TEXT_ROOM):
        raise ValueError(f"{knob}: no such knob")
    return text.value.decode()


@contextmanager
def knobs(**values: str) -> Iterator[None]:
    """Change knobs for the length of a `with` block: `knobs(FAIL_COPY="2")`.

    Raises:
        ValueError: see `set_fault`. No knob has changed.
    """
    with ExitStack() as restore:
        for knob, value in values.items():
            restore.callback(set_fault, knob, setting(knob))
            set_fault(knob, value)
        yield


def counter(name: str) -> int:
    """Return what this process has done so far.

    copies, spans, bytes_h2d, bytes_d2h and launches only grow; live_allocations (of device
    memory), pinned_nbytes, streams and threads (of streams) are as of now; canary_breaks counts
    writes outside an allocation.

    Raises:
        ValueError: there is no such counter.
    """
    value: int = _runtime().ems_simulator_get(name.encode())
    if value < 0:
        raise ValueError(f"{name}: no such counter")
    return value


@cache
def _runtime() -> ctypes.CDLL:
    try:
        runtime = ctypes.CDLL("libascendcl.so")
        runtime.ems_simulator_get.restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        raise RuntimeError("the simulated runtime is not the one in use") from error
    runtime.ems_simulator_get.argtypes = [ctypes.c_char_p]
    runtime.ems_simulator_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    runtime.ems_simulator_setting.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return runtime
