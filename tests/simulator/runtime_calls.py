"""The runtime's C functions, called without torch."""

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
HOST, DEVICE = 0, 1
COPY_FAILED = 507052
PARAM_INVALID = 107000
NO_SPAN = 2**64 - 1
GIB = 1 << 30

_library = ctypes.CDLL("libascendcl.so")
_library.aclGetRecentErrMsg.restype = ctypes.c_char_p


def acl(name, *arguments):
    """Call a function; whole numbers are passed as 64 bits, which fits every argument."""
    wide = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
    return getattr(_library, name)(*wide)


def done(name, *arguments):
    code = acl(name, *arguments)
    assert code == 0, f"{name}: {code}, {recent_error()}"


def recent_error():
    return (_library.aclGetRecentErrMsg() or b"").decode()


def answer(name, *arguments, kind=ctypes.c_int32):
    """Call a function whose last argument is where its answer goes."""
    place = kind()
    done(name, *arguments, ctypes.byref(place))
    return place.value


def created(name, *arguments):
    """Call a function whose first argument is where its answer goes."""
    place = ctypes.c_void_p()
    done(name, ctypes.byref(place), *arguments)
    return place.value


def memory_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    done("aclrtGetMemInfo", 0, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def allocate(nbytes):
    return created("aclrtMalloc", nbytes, 0)


@contextmanager
def on_device(nbytes):
    p = allocate(nbytes)
    yield p
    done("aclrtFree", p)


@contextmanager
def pinned(content):
    p = created("aclrtMallocHost", len(content))
    ctypes.memmove(p, content, len(content))
    yield p
    done("aclrtFreeHost", p)


@contextmanager
def new_stream():
    stream = created("aclrtCreateStream")
    yield stream
    done("aclrtDestroyStreamForce", stream)


@contextmanager
def new_event():
    event = created("aclrtCreateEventWithFlag", 0)
    yield event
    done("aclrtDestroyEvent", event)


class Gate:
    """A task that keeps a stream busy until the gate is opened."""

    def __init__(self, stream):
        self._opened = threading.Event()
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._wait)
        done("aclrtLaunchHostFunc", stream, self._function, None)

    def _wait(self, _argument):
        self._opened.wait()

    def open(self):
        self._opened.set()


@contextmanager
def gate(stream):
    """Keep `stream` busy for the length of the block; then see it through."""
    barrier = Gate(stream)
    try:
        yield barrier
    finally:
        barrier.open()
        acl("aclrtSynchronizeStream", stream)


def device_bytes(p, nbytes):
    content = ctypes.create_string_buffer(nbytes)
    done("aclrtMemcpy", content, nbytes, p, nbytes, DEVICE_TO_HOST)
    return content.raw


def write_device(p, content):
    done("aclrtMemcpy", p, len(content), content, len(content), HOST_TO_DEVICE)


class Location(ctypes.Structure):
    _fields_ = (("device", ctypes.c_uint32), ("type", ctypes.c_int32))


class Attribute(ctypes.Structure):
    _fields_ = (("dst", Location), ("src", Location), ("reserved", ctypes.c_uint8 * 16))


def attribute(dst, src, device=0):
    return Attribute(*(Location(device if kind == DEVICE else 0, kind) for kind in (dst, src)))


TO_HOST = attribute(HOST, DEVICE)
TO_DEVICE = attribute(DEVICE, HOST)


def batch(spans, attributes, stream=None, *, first_spans=(0,)):
    """Copy spans (dst, src, nbytes); return the code and the span that is to blame."""
    count = len(spans)
    dst, src = ((ctypes.c_void_p * count)(*(span[i] for span in spans)) for i in (0, 1))
    sizes = (ctypes.c_size_t * count)(*(span[2] for span in spans))
    failed_span = ctypes.c_size_t()
    code = acl(
        "aclrtMemcpyBatch" if stream is None else "aclrtMemcpyBatchAsync",
        *(dst, sizes, src, sizes, count),
        (Attribute * len(attributes))(*attributes),
        (ctypes.c_size_t * len(first_spans))(*first_spans),
        len(attributes),
        ctypes.byref(failed_span),
        *([] if stream is None else [stream]),
    )
    return code, failed_span.value


def start_python(code, **variables):
    """Start Python in a process of its own, with `variables` added to the environment."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(code, **variables):
    """Run Python in a process of its own; return its exit code, output and errors."""
    with start_python(code, **variables) as process:
        output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def output_of(code, **variables):
    status, output, errors = run_python(code, **variables)
    assert status == 0, errors
    return output
