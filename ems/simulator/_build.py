"""Compiles the simulated CANN runtime when a wheel or an editable install is built.

The compiler is $CC, else cc, else zig of the package ziglang, which the build then asks for by
itself. EMS_ZIG=x86_64 or aarch64 builds a wheel for other computers, with zig in any case.

Only what zig has built runs on any Linux since glibc 2.17 and is tagged so.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig

SOURCES = Path(__file__).parent / "src"
PLACE = "ems/simulator/home/lib64"
ZIG = "ziglang==0.17.1"

FORWARDER = "forwarder.c"
FORWARDERS = (
    "acl_op_compiler",
    "acl_tdt_channel",
    "ascend_hal",
    "ge_runner",
    "graph",
    "hccl",
    "nnopbase",
    "opapi",
)
"""Libraries of CANN that torch_npu needs by name; all functions are in libascendcl.so."""

# $ORIGIN: the linker finds libascendcl.so beside the library that needs it
FLAGS = shlex.split(
    "-O2 -s -std=gnu11 -Wall -Wextra -fPIC -fvisibility=hidden -shared -pthread -Wl,-rpath,$ORIGIN"
)


class Hook(BuildHookInterface[WheelBuilderConfig]):
    """Adds the built libraries to a wheel, or puts them into the tree of an editable install."""

    def dependencies(self) -> list[str]:
        """Return what the build needs besides the build system: zig, if it is the compiler."""
        if sys.platform != "linux" or "ziglang" not in compiler()[0]:
            return []
        return [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the libraries, except on systems that have no torch_npu."""
        if sys.platform != "linux":
            return
        command, platform_tag = compiler()
        if version == "editable":
            build(command, Path(self.root, PLACE))
        else:
            # a wheel for another computer must not change the tree
            self._scratch = tempfile.TemporaryDirectory()
            build(command, Path(self._scratch.name))
            build_data["force_include"][self._scratch.name] = PLACE
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag}"


def compiler() -> tuple[list[str], str]:
    """Return the command of the compiler and the platform tag of what it builds."""
    machine = os.environ.get("EMS_ZIG")
    command = os.environ.get("CC") or shutil.which("cc")
    if command and not machine:
        return shlex.split(command), sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine = machine or platform.machine()
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17"]
    return zig, f"manylinux_2_17_{machine}"


def build(command: list[str], place: Path) -> None:
    """Write libascendcl.so and the libraries that forward to it into `place`."""
    place.mkdir(parents=True, exist_ok=True)
    sources = sorted(source.name for source in SOURCES.glob("*.c") if source.name != FORWARDER)
    # beside their place and moved there at the end: a running process keeps the file it has
    # mapped, and a build that fails leaves the libraries as they were
    with tempfile.TemporaryDirectory(dir=place, prefix=".building-") as scratch:
        fresh = Path(scratch)
        link(command, fresh / "libascendcl.so", [*sources, "-Wl,-z,defs", "-lm"])
        for name in FORWARDERS:
            needs = ["-Wl,--no-as-needed", f"-L{fresh}", "-lascendcl"]
            link(command, fresh / f"lib{name}.so", [FORWARDER, *needs])
        for library in fresh.glob("*.so"):
            library.replace(place / library.name)


def link(command: list[str], library: Path, arguments: list[str]) -> None:
    """Compile and link one library that other libraries know by its file name."""
    name = [f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*command, *FLAGS, *name, *arguments], cwd=SOURCES, check=True)  # noqa: S603 - the compiler that was asked for
