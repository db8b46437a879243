import json
import os
import re
import resource
import sys
from dataclasses import replace
from importlib import metadata

import pytest
from cli_text import golden, printed
from faulty_pools import ForgetfulPool, GarblingPool
from typer.testing import CliRunner

from ems import simulator
from ems.common.exception import EmsException
from ems.simulator import control
from ems_cli.app import app
from ems_cli.diagnostics import (
    doctor,
    doctor_ems,
    doctor_host,
    doctor_npu,
    doctor_software,
    pool_trial,
)
from ems_cli.diagnostics.doctor import CHECKS, DoctorReport, chosen_checks, examine
from ems_cli.diagnostics.finding import Outcome, counts, failed, passed, skipped, warned
from ems_cli.diagnostics.host_pages import HostPages
from ems_cli.diagnostics.steps import Steps
from ems_cli.diagnostics.surroundings import Machine, Ran, locked_memory_limit, run_child
from ems_cli.render.doctor import doctor_text

PASS, WARN, FAIL, SKIP = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.SKIP
GIB = 1 << 30


def told(*steps, code=0, err=""):
    """Return a probe that told these steps and then ended."""
    return Steps.of(Ran(code, "".join(f"{json.dumps(step)}\n" for step in steps), err))


def step(kind, /, **facts):
    return {"step": kind, **facts}


def ended(text):
    return step("error", text=text)


TORCH = step("torch", version="2.13.0", seconds=2.0)
TORCH_NPU = step("torch_npu", version="2.13.0", seconds=1.0)
NPUS = step("npus", simulated=False, count=2)


def memory(index, free=60 * GIB):
    return step("memory", index=index, name="Ascend910B2", free_nbytes=free, total_nbytes=64 * GIB)


def plant(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Machine({}, root, which=lambda _: None)


@pytest.mark.parametrize(("version", "outcome"), [((3, 9, 18), FAIL), ((3, 10, 0), PASS)])
def test_python(version, outcome):
    assert doctor_software.check_python(version).outcome is outcome


@pytest.mark.parametrize(
    ("torch", "torch_npu", "outcome"),
    [
        ("2.13.0+cpu", "2.13.0", PASS),
        ("2.9.0+cpu", "2.9.0.post2+gitabc", WARN),  # not the tested pair
        ("2.13.0", "2.12.1", FAIL),
        ("2.6.0", "2.6.0", FAIL),
        ("2.13.0", None, FAIL),
        (None, None, FAIL),
    ],
)
def test_packages(torch, torch_npu, outcome):
    versions = {"torch": torch, "torch_npu": torch_npu}
    assert doctor_software.check_packages(versions).outcome is outcome


def test_the_tested_pair_is_what_the_tests_install():
    wanted = [one for one in metadata.requires("ems") if "simulated" in one]
    for name, version in doctor_software.TESTED.items():
        assert any(
            re.match(rf"{name.replace('_', '-')}=={re.escape(version)}\.\*", one) for one in wanted
        )


@pytest.mark.parametrize(
    ("steps", "outcome", "text"),
    [
        (told(step("runtime", state="real")), PASS, "loads"),
        (told(step("runtime", state="absent")), PASS, "none; SIMULATED"),
        (told(step("runtime", state="simulated")), PASS, "SIMULATED"),
        (told(step("runtime", state="broken", error="libx.so")), FAIL, "does not load: libx.so"),
        (told(code=-11), FAIL, "crashed: SIGSEGV"),
        (told(code=None), FAIL, "did not end and was killed"),
    ],
)
def test_cann(steps, outcome, text):
    finding = doctor_software.check_cann(steps)
    assert (finding.outcome, text in finding.found) == (outcome, True)
    assert bool(finding.fix) == (outcome is FAIL)


@pytest.mark.parametrize(
    ("steps", "torch", "torch_npu"),
    [
        (told(TORCH, TORCH_NPU), PASS, PASS),
        (told({**TORCH, "seconds": 45.0}, TORCH_NPU), WARN, PASS),
        (told(TORCH, ended("libhccl.so: cannot open shared object file")), PASS, FAIL),
        (told(ended("No module named 'torch'"), code=0), FAIL, SKIP),
        (told(TORCH, code=-6), PASS, FAIL),
        (told(TORCH, code=None), PASS, FAIL),
        (told(code=1, err="boom"), FAIL, SKIP),
    ],
)
def test_imports(steps, torch, torch_npu):
    assert doctor_software.check_import("torch", steps, before=None).outcome is torch
    assert doctor_software.check_import("torch_npu", steps, before="torch").outcome is torch_npu


def test_a_library_that_is_missing_is_fixed_by_the_environment_of_cann():
    steps = told(TORCH, ended("libhccl.so: cannot open shared object file"))
    assert "set_env.sh" in doctor_software.check_import("torch_npu", steps, before="torch").fix


@pytest.mark.parametrize(
    ("value", "cann", "has_torch_npu", "outcome"),
    [
        (None, "real", True, PASS),
        (None, "absent", True, WARN),
        (None, "broken", True, WARN),
        ("1", "absent", True, WARN),
        ("0", "absent", True, PASS),
        (None, "absent", False, SKIP),
    ],
)
def test_autoload(value, cann, has_torch_npu, outcome):
    environment = {} if value is None else {"TORCH_DEVICE_BACKEND_AUTOLOAD": value}
    finding = doctor_software.check_autoload(environment, cann=cann, has_torch_npu=has_torch_npu)
    assert finding.outcome is outcome


@pytest.mark.parametrize(
    ("devices", "tool", "cann", "outcome"),
    [
        ([], None, "absent", SKIP),
        ([], None, "real", FAIL),
        (["davinci0", "davinci1", "davinci_manager"], "/usr/bin/npu-smi", "real", PASS),
        (["davinci0", "davinci_manager"], None, "real", WARN),
        (["davinci0"], "/usr/bin/npu-smi", "real", FAIL),
    ],
)
def test_driver(tmp_path, devices, tool, cann, outcome):
    machine = replace(plant(tmp_path, {f"dev/{one}": "" for one in devices}), which=lambda _: tool)
    assert doctor_npu.check_driver(machine, cann=cann).outcome is outcome


@pytest.mark.parametrize(
    ("value", "outcome", "text"),
    [
        (None, PASS, "all are visible"),
        ("0,1", PASS, "device_id counts these"),
        ("6, 7", PASS, "device_id counts these"),
        ("", FAIL, "no NPU is visible"),
        ("0-3", FAIL, "'0-3'"),
        ("npu:0", FAIL, "npu:0"),
        ("0,,1", FAIL, "0,,1"),
        ("1,1", FAIL, "one comes twice"),
        ("0,9", FAIL, "no NPU 9"),
    ],
)
def test_visible_devices(value, outcome, text):
    finding = doctor_npu.check_visible_devices(value, [0, 1, 6, 7])
    assert (finding.outcome, text in finding.found) == (outcome, True)


@pytest.mark.parametrize(
    ("steps", "devices", "device_memory"),
    [
        (told(TORCH, TORCH_NPU, NPUS, memory(0), memory(1)), PASS, PASS),
        (told(TORCH, TORCH_NPU, NPUS, memory(0), memory(1, GIB // 2)), PASS, WARN),
        (told(TORCH, TORCH_NPU, NPUS, memory(0), ended("507033")), PASS, FAIL),
        (told(TORCH, TORCH_NPU, NPUS, memory(0), code=None), PASS, FAIL),
        (told(TORCH, TORCH_NPU, {**NPUS, "count": 0}), FAIL, SKIP),
        (told(TORCH, TORCH_NPU, ended("drv")), FAIL, SKIP),
        (told(TORCH), SKIP, SKIP),
    ],
)
def test_devices(steps, devices, device_memory):
    assert doctor_npu.check_devices(steps).outcome is devices
    assert doctor_npu.check_device_memory(steps).outcome is device_memory


@pytest.mark.parametrize(("available", "outcome"), [("9000000", PASS), ("1000000", WARN)])
def test_memory(tmp_path, available, outcome):
    machine = plant(
        tmp_path, {"proc/meminfo": f"MemTotal: 9900000 kB\nMemAvailable: {available} kB\n"}
    )
    info = doctor_host.memory_info(machine)
    assert info["MemAvailable"] == int(available) * 1024
    assert doctor_host.check_memory(info, 8 * GIB).outcome is outcome


def test_memory_that_is_not_told_is_skipped(tmp_path):
    info = doctor_host.memory_info(plant(tmp_path, {}))
    assert doctor_host.check_memory(info, GIB).outcome is SKIP
    assert doctor_host.check_huge_pages(info).outcome is SKIP


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "limit", "file"),
    [
        ({f"{V2}/memory.max": "max\n"}, None, None),
        (
            {f"{V2}/memory.max": f"{4 * GIB}\n", f"{V2}/memory.current": f"{GIB}\n"},
            4 * GIB,
            "memory.max",
        ),
        (
            {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/memory.max": f"{GIB}\n"},
            GIB,
            "a/memory.max",
        ),
        (
            {"proc/self/cgroup": "4:memory:/pod\n0::/\n", f"{V1}/memory.limit_in_bytes": "4096\n"},
            4096,
            "memory.limit_in_bytes",
        ),
        ({f"{V1}/memory.limit_in_bytes": "9223372036854771712\n"}, None, None),
        ({}, None, None),
    ],
)
def test_the_limit_of_the_container_is_found_in_both_versions(tmp_path, files, limit, file):
    found = doctor_host.cgroup_memory(plant(tmp_path, files))
    assert (None if found is None else found.limit_nbytes) == limit
    assert found is None or found.file.endswith(file)


def test_container(tmp_path):
    found = doctor_host.CgroupMemory(4 * GIB, GIB, "/sys/fs/cgroup/memory.max")
    assert doctor_host.check_container(None, 8 * GIB).outcome is PASS
    assert doctor_host.check_container(found, 3 * GIB).outcome is PASS
    tight = doctor_host.check_container(found, 8 * GIB)
    assert (tight.outcome, tight.found) == (
        WARN,
        "3.00 GiB of 4.00 GiB left by /sys/fs/cgroup/memory.max",
    )


@pytest.mark.parametrize(
    ("size", "free", "outcome"),
    [(GIB, GIB // 2, PASS), (64 << 20, 64 << 20, WARN), (GIB, 1 << 20, WARN)],
)
def test_shm(size, free, outcome):
    assert doctor_host.judge_shm(size, free).outcome is outcome


def test_a_missing_shm_fails(tmp_path):
    assert doctor_host.check_shm(tmp_path / "none").outcome is FAIL
    assert doctor_host.check_shm(tmp_path).found.endswith("free")


@pytest.mark.parametrize(
    ("limit", "cann", "outcome"),
    [(None, "real", PASS), (8 * GIB, "real", PASS), (8 << 20, "real", WARN), (1, "absent", SKIP)],
)
def test_locked_memory(limit, cann, outcome):
    assert doctor_host.check_locked_memory(limit, 8 * GIB, cann=cann).outcome is outcome


@pytest.mark.parametrize(("free", "outcome"), [(0, PASS), (100, PASS), (600, WARN)])
def test_huge_pages(free, outcome):
    info = {"MemTotal": 2 * GIB, "HugePages_Total": 600, "HugePages_Free": free}
    finding = doctor_host.check_huge_pages({**info, "Hugepagesize": 2 << 20})
    assert finding.outcome is outcome


def test_log_dir(tmp_path):
    def outcome(**environment):
        return doctor_ems.check_log_dir(environment, os.getuid()).outcome

    (tmp_path / "file").write_text("")
    assert outcome() is SKIP
    assert outcome(ENABLE_CC_PROFILING="1", EMS_SDK_LOG=str(tmp_path / "new")) is PASS
    assert outcome(ENABLE_CC_PROFILING="1", EMS_SDK_LOG=str(tmp_path / "file" / "x")) is FAIL
    assert outcome(ENABLE_CC_PROFILING="1", EMS_SDK_LOG=str(tmp_path / "file")) is FAIL


def test_run_dir(tmp_path):
    mine = tmp_path / "mine"
    me = os.getuid()
    assert doctor_ems.check_run_dir(mine, me).outcome is PASS  # not made yet
    mine.mkdir(mode=0o700)
    assert doctor_ems.check_run_dir(mine, me).outcome is PASS
    assert doctor_ems.check_run_dir(mine, me + 1).outcome is FAIL
    mine.chmod(0o777)
    open_to_all = doctor_ems.check_run_dir(mine, me)
    assert (open_to_all.outcome, open_to_all.fix) == (WARN, f"chmod 700 {mine}")
    link = tmp_path / "link"
    link.symlink_to(mine)
    assert "a link" in doctor_ems.check_run_dir(link, me).found
    (tmp_path / "file").write_text("")
    assert doctor_ems.check_run_dir(tmp_path / "file", me).outcome is FAIL
    assert doctor_ems.check_run_dir(tmp_path / "file" / "x", me).outcome is FAIL


def test_a_run_dir_that_cannot_be_written_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert doctor_ems.check_run_dir(tmp_path, os.getuid()).outcome is FAIL
    assert doctor_ems.check_run_dir(tmp_path / "new", os.getuid()).outcome is FAIL


@pytest.mark.parametrize(
    ("url", "outcome"),
    [(None, PASS), ("memory://?capacity=1GiB", PASS), ("memory", FAIL), ("a://b:port", FAIL)],
)
def test_pool_url(url, outcome):
    environment = {} if url is None else {"EMS_POOL": url}
    assert doctor_ems.check_pool_url(environment).outcome is outcome


@pytest.mark.parametrize(
    ("url", "nbytes"),
    [
        (None, 8 * GIB),
        ("memory://?capacity=1GiB", GIB),
        ("memory://", 8 * GIB),
        ("memory://?capacity=x", 8 * GIB),
        ("tiered+mooncake://a?local=2GiB", 2 * GIB),
        ("mooncake://a:1", 0),
    ],
)
def test_the_host_memory_that_a_pool_takes(url, nbytes):
    assert doctor_ems.pool_nbytes({} if url is None else {"EMS_POOL": url}) == nbytes


ALL = [step(name) for name in ("opened", "answers", "stored", "read back", "removed")]


@pytest.mark.parametrize(
    ("steps", "outcome", "text"),
    [
        (told(*ALL), PASS, "the same bytes"),
        (told(ended("no server")), FAIL, "not opened: failed: no server"),
        (told(*ALL[:1], code=None), FAIL, "not answers: did not end"),
        (told(*ALL[:3], ended("other bytes")), FAIL, "not read back: failed: other bytes"),
        (told(*ALL[:1], code=-11), FAIL, "crashed: SIGSEGV"),
    ],
)
def test_pool(steps, outcome, text):
    finding = doctor_ems.check_pool(steps)
    assert (finding.outcome, text in finding.found) == (outcome, True)


def test_an_entry_goes_into_the_pool_and_comes_back():
    done = list(pool_trial.try_pool("memory://?capacity=1MiB", HostPages(), seconds=30))
    assert done == ["opened", "answers", "stored", "read back", "removed"]


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (ForgetfulPool, "what was stored is not there: ABSENT"),
        (GarblingPool, "other bytes, the first at 7"),
    ],
)
def test_a_pool_that_gives_back_something_else_is_found_out(monkeypatch, pool, why):
    monkeypatch.setattr(pool_trial, "open_pool", lambda url, memory: pool(memory))
    steps = pool_trial.try_pool("x://", HostPages(), seconds=30)
    with pytest.raises(EmsException, match=why):
        list(steps)


@pytest.mark.parametrize(
    ("seed", "outcome"), [("0", PASS), (None, WARN), ("random", WARN), ("", WARN)]
)
def test_hash_seed(seed, outcome):
    environment = {} if seed is None else {"PYTHONHASHSEED": seed}
    assert doctor_software.check_hash_seed(environment).outcome is outcome


@pytest.mark.parametrize(("mode", "outcome"), [(None, PASS), ("2", PASS), ("3", WARN), ("", WARN)])
def test_task_queue(mode, outcome):
    environment = {} if mode is None else {"TASK_QUEUE_ENABLE": mode}
    assert doctor_software.check_task_queue(environment).outcome is outcome


@pytest.mark.parametrize(
    ("environment", "cann", "outcome"),
    [
        ({}, "real", PASS),
        ({"EMS_SIM_DEVICES": "2"}, "absent", PASS),
        ({"EMS_SIM_DEVICES": "2"}, "real", WARN),
        ({"EMS_SIM_DEVICE": "2"}, "absent", FAIL),
    ],
)
def test_simulator(environment, cann, outcome):
    assert doctor_ems.check_simulator(environment, cann=cann).outcome is outcome


def test_a_value_that_the_simulator_does_not_understand_fails():
    environment = {"EMS_SIM_DEVICES": "x", "EMS_SIM_MEMORY": "1GiB"}
    said = "other\nems.simulator: EMS_SIM_DEVICES=x is not understood\n"
    found = doctor_ems.check_simulator(environment, cann="absent", said=lambda: said)
    assert (found.outcome, found.found) == (FAIL, "EMS_SIM_DEVICES=x is not understood")


def test_a_setting_of_the_simulator_is_really_tried():
    result = run("--only", "simulator", EMS_SIM_DEVICES="x")
    assert (result.exit_code, "EMS_SIM_DEVICES=x is not understood" in said(result)) == (1, True)


def test_the_variables_of_the_simulator_are_those_it_documents():
    words = f"{simulator.__doc__} {control.__doc__}".replace(",", " ").replace(";", " ").split()
    for name in doctor_ems._SIMULATOR:
        assert name in words or name.removeprefix("EMS_SIM_") in words


def test_a_child_that_hangs_is_killed():
    ran = run_child([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], {}, 2.0)
    assert (ran.code, ran.out) == (None, "1\n")


def test_a_probe_that_crashes_half_way_keeps_what_it_told():
    code = 'import os\nprint(\'{"step": "torch"}\', flush=True)\nos.abort()'
    steps = Steps.of(run_child([sys.executable, "-c", code], {}, 60.0))
    assert (steps.facts("torch"), steps.end()) == ({"step": "torch"}, "crashed: SIGABRT")


def machine_with(**environment):
    calls = []

    def run(command, variables, seconds):
        calls.append((command[-1], dict(variables)))
        steps = {"runtime": [step("runtime", state="absent")], "pool": ALL}
        answers = steps.get(command[-1], [TORCH, TORCH_NPU, NPUS, memory(0), memory(1)])
        return Ran(0, "".join(f"{json.dumps(one)}\n" for one in answers), "")

    return Machine(environment, run=run), calls


def test_every_probe_is_made_once_and_without_the_autoload_of_torch():
    machine, calls = machine_with()
    report = examine(machine, list(CHECKS))
    assert sorted(name for name, _ in calls) == ["npu", "pool", "runtime"]
    variables = dict(calls)["npu"]
    assert variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert report.simulated
    assert [finding.name for finding in report.findings] == list(CHECKS)


def test_only_what_is_chosen_is_examined():
    machine, calls = machine_with()
    report = examine(machine, chosen_checks(["python", "hash-seed"], ["hash-seed"]))
    assert [finding.name for finding in report.findings] == ["python"]
    assert (calls, report.simulated) == ([], False)


def test_an_interrupt_keeps_what_was_found_so_far(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(doctor.CHECKS, "packages", interrupt)
    report = examine(machine_with()[0], ["python", "packages", "hash-seed"])
    assert ([finding.name for finding in report.findings], report.ended) == (
        ["python"],
        "interrupted",
    )
    result = run("--only", "python,packages")
    assert (result.exit_code, "Interrupted after 1 PASS" in result.stdout) == (130, True)


def test_a_warning_fails_only_where_it_is_to_be_strict():
    machine, _ = machine_with()
    assert examine(machine, ["hash-seed"]).outcome is WARN
    assert examine(machine, ["hash-seed"], strict=True).outcome is FAIL
    assert examine(machine, ["python"], strict=True).outcome is PASS


def run(*arguments, **environment):
    variables = {"COLUMNS": "80", **environment}
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env=variables)


def said(result):
    return " ".join((result.stdout + result.stderr).split())


def test_the_exit_code_tells_a_failure():
    good = run("--only", "pool-url,python", EMS_POOL="memory://")
    bad = run("--only", "pool-url", "--json", EMS_POOL="nonsense")
    assert (good.exit_code, bad.exit_code) == (0, 1)
    report = json.loads(bad.stdout)
    assert (report["schema"], report["outcome"], report["counts"]["FAIL"]) == (1, "FAIL", 1)


def test_strict_on_the_command_line():
    assert run("--only", "hash-seed", PYTHONHASHSEED="random").exit_code == 0
    strict = run("--only", "hash-seed", "--strict", PYTHONHASHSEED="random")
    assert (strict.exit_code, "--strict takes a warning" in said(strict)) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "nope"], "'nope' is no check; there are python, packages"),
        (["--only", "python", "--skip", "python"], "no check is left"),
        (["--bundle", "x.rar"], "must end in .tar.gz or .zip"),
        (["--only", "pool", "--seconds", "inf"], "--seconds"),
    ],
)
def test_wrong_usage_is_told(arguments, why):
    result = run(*arguments)
    assert (result.exit_code, why in said(result)) == (2, True)


def test_this_computer_is_examined_from_end_to_end(tmp_path):
    result = run(
        "--json", EMS_POOL="memory://?capacity=1MiB&segment=1MiB", EMS_RUN_DIR=str(tmp_path / "run")
    )
    report = json.loads(result.stdout)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert (found["torch_npu"]["outcome"], found["pool"]["outcome"]) == ("PASS", "PASS"), found
    assert found["devices"]["outcome"] == "PASS", found
    assert result.exit_code == (1 if report["counts"]["FAIL"] else 0)


def test_the_report_looks_like_this_at_80_columns():
    findings = (
        passed("python", "3.11.7", "at least 3.10"),
        warned("hash-seed", "PYTHONHASHSEED is not set", "a number", "export PYTHONHASHSEED=0"),
        failed(
            "cann",
            "does not load: libhccl.so: cannot open shared object file (ASCEND_HOME_PATH is set)",
            "CANN, or no sign of it: then the NPU is simulated",
            "source set_env.sh of CANN",
        ),
        skipped("driver", "no /dev/davinci*: no NPU here \x1b[31m"),
    )
    report = DoctorReport(
        FAIL, True, False, "complete", counts(findings), {"ems": "0.1.0"}, findings
    )
    assert printed(doctor_text(report)) == golden("doctor.txt")


def test_the_limit_on_locked_memory_is_that_of_this_process():
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert locked_memory_limit() == (None if soft == resource.RLIM_INFINITY else soft)
