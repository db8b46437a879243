import ctypes
import sys

import pytest

from ems import simulator

_build = pytest.importorskip("ems.simulator._build", reason="hatchling is not installed")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("EMS_ZIG", raising=False)
    monkeypatch.setattr(_build.shutil, "which", lambda _: "/usr/bin/cc")
    monkeypatch.setattr(_build.platform, "machine", lambda: "x86_64")


def zig(machine):
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17"]


def dependencies():
    return _build.Hook.dependencies(None)


def test_the_compiler_of_the_system_makes_a_wheel_for_this_system_only():
    command, tag = _build.compiler()
    assert command == ["/usr/bin/cc"]
    assert tag.startswith("linux_")
    assert dependencies() == []


def test_a_compiler_can_be_named_with_its_flags(monkeypatch):
    monkeypatch.setenv("CC", "gcc -m64")
    assert _build.compiler()[0] == ["gcc", "-m64"]


def test_without_a_compiler_zig_is_asked_for(monkeypatch):
    monkeypatch.setattr(_build.shutil, "which", lambda _: None)
    assert _build.compiler() == (zig("x86_64"), "manylinux_2_17_x86_64")
    assert dependencies() == [_build.ZIG]


def test_zig_builds_for_another_computer_even_where_there_is_a_compiler(monkeypatch):
    monkeypatch.setenv("EMS_ZIG", "aarch64")
    assert _build.compiler() == (zig("aarch64"), "manylinux_2_17_aarch64")


def test_nothing_is_built_where_there_is_no_torch_npu(monkeypatch):
    monkeypatch.setattr(_build.sys, "platform", "darwin")
    build_data = {}
    _build.Hook.initialize(None, "standard", build_data)
    assert build_data == {}
    assert dependencies() == []


@pytest.mark.parametrize("name", ["ascendcl", *_build.FORWARDERS])
def test_every_library_leads_to_the_runtime(name):
    library = ctypes.CDLL(str(simulator.HOME / "lib64" / f"lib{name}.so"))
    assert library.ems_simulator
    assert library.aclrtMalloc


def test_a_failed_build_leaves_the_libraries_as_they_were(tmp_path):
    (tmp_path / "libascendcl.so").write_text("old")
    with pytest.raises(_build.subprocess.CalledProcessError):
        _build.build(["false"], tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["libascendcl.so"]
    assert (tmp_path / "libascendcl.so").read_text() == "old"
