"""The simulated runtime defines everything that the installed torch_npu links or looks up.

Run as a program, it prints ems/simulator/src/operator_names.h for that torch_npu.
"""

import ctypes
import importlib.metadata
import importlib.util
import mmap
import re
import struct
import sys
from pathlib import Path

import pytest

from ems.simulator import HOME

NAMES_FILE = Path(__file__).parents[2] / "ems" / "simulator" / "src" / "operator_names.h"

FIRST_HALF = "GetWorkspaceSize"

NO_OPERATORS = {
    "aclnnNotFound": "an entry of torch_npu's own table of error causes",
    "aclnnNotFoundV2": "an entry of torch_npu's own table of error causes",
    "aclnnReselectStaticKernel": "asked for only if kernels have been compiled ahead of time",
    "aclnnReselectStaticKernelWithPath": "the same",
    "aclnnSetPytorchRandom": "an optional hook; torch_npu goes on without it",
}
"""Names in the binaries that need not be defined, and why."""

CANN = re.compile(r"(acl|Hccl|Msprof|rt[A-Z]|drv[A-Z])\w*")


def symbols(library, *, defined):
    """Names in the dynamic symbol table of a 64-bit little-endian ELF file."""
    content = library.read_bytes()
    assert content[:6] == b"\x7fELF\x02\x01", f"{library} is not a 64-bit little-endian ELF file"
    (sections_at,) = struct.unpack_from("<Q", content, 0x28)
    entry_size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", content, sections_at + i * entry_size)
        for i in range(count)
    ]
    dynamic_symbols = 11
    names = set()
    for _, kind, _, _, offset, size, linked, *_ in sections:
        if kind != dynamic_symbols:
            continue
        texts_at = sections[linked][4]
        entries = struct.iter_unpack("<IBBHQQ", content[offset : offset + size])
        for name_at, _, _, section, _, _ in entries:
            if (section != 0) == defined:
                start = texts_at + name_at
                names.add(content[start : content.index(b"\0", start)].decode())
    return names


def texts(library, pattern):
    """C strings in a file that match the pattern as a whole."""
    whole = re.compile(rb"(?<=\0)(" + pattern + rb")(?=\0)")
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return {match.group(1).decode() for match in whole.finditer(content)}


def binaries_of_torch_npu():
    (place,) = importlib.util.find_spec("torch_npu").submodule_search_locations
    found = sorted(Path(place).rglob("*.so*"))
    assert found, f"no shared libraries in {place}"
    return found


def linked_names(libraries):
    undefined = set().union(*(symbols(library, defined=False) for library in libraries))
    return {name for name in undefined if CANN.fullmatch(name)}


def looked_up_names():
    return set().union(*(texts(library, rb"aclnn\w+") for library in binaries_of_torch_npu()))


def looked_up_operators():
    """Operators of which both halves are looked up."""
    names = looked_up_names()
    return {name for name in names if name + FIRST_HALF in names}


def names_file():
    version = importlib.metadata.version("torch_npu")
    lines = [
        f"/* The operators that the binaries of torch_npu {version} look up, one on a line. This",
        " * file is what `python tests/simulator/test_symbols.py` prints for them. */",
        *(f"LOOKED_UP({name})" for name in sorted(looked_up_operators())),
    ]
    return "\n".join(lines) + "\n"


def missing(names, libraries):
    defined = set().union(*(symbols(library, defined=True) for library in libraries))
    return sorted(names - defined)


@pytest.fixture(scope="module")
def runtime():
    libraries = sorted((HOME / "lib64").glob("*.so"))
    assert libraries, "the simulated runtime has not been built"
    return libraries


def test_everything_that_torch_npu_links_is_defined(runtime):
    names = linked_names(binaries_of_torch_npu())
    assert {"aclInit", "aclrtMemcpyAsync", "aclopCompileAndExecute", "rtKernelLaunch"} <= names
    assert missing(names, runtime) == []


def test_both_halves_of_every_operator_that_torch_npu_looks_up_are_defined(runtime):
    operators = looked_up_operators()
    assert {"aclnnInplaceCopy", "aclnnIndexSelect", "aclnnSort"} <= operators
    assert missing(operators | {name + FIRST_HALF for name in operators}, runtime) == []


def test_other_names_of_operators_are_defined_or_known_to_be_harmless(runtime):
    assert missing(looked_up_names(), runtime) == sorted(NO_OPERATORS)


def test_the_list_of_operators_is_that_of_the_installed_torch_npu():
    assert NAMES_FILE.read_text() == names_file()


def test_a_name_that_no_library_defines_is_reported(runtime):
    assert missing({"aclInit", "aclnnNoSuchThing"}, runtime) == ["aclnnNoSuchThing"]


def test_a_library_that_lacks_a_symbol_is_noticed(runtime):
    forwarders = [library for library in runtime if library.name != "libascendcl.so"]
    assert "aclInit" in missing(linked_names(binaries_of_torch_npu()), forwarders)


def test_every_library_forwards_to_the_runtime(runtime):
    assert len(runtime) == 9
    for library in runtime:
        assert hasattr(ctypes.CDLL(str(library)), "aclnnSort"), library


if __name__ == "__main__":
    sys.stdout.write(names_file())
