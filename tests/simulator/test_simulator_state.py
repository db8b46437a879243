import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ems import simulator

LIBRARIES = str(simulator.HOME / "lib64")
ROOT = Path(simulator.__file__).parents[2]


@pytest.fixture
def fresh():
    """Return the environment of a process that knows nothing of a runtime."""
    without = ("LD_LIBRARY_PATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in without}
    return {**variables, "PYTHONPATH": str(ROOT)}


def python(*arguments, env, stdin=None):
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        cwd="/",  # Python would find the ems of the current directory first
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def run(code, env):
    return python("-c", f"from ems import simulator\n{code}", env=env)


def test_without_cann_the_runtime_is_absent_until_it_is_activated(fresh):
    code = "print(simulator.state()); simulator.activate(); print(simulator.state())"
    assert run(code, fresh).stdout.split() == ["absent", "simulated"]


def test_ensuring_activates_once_and_says_that_it_is_simulated(fresh):
    code = "print(simulator.ensure(), simulator.ensure())"
    assert run(code, fresh).stdout.split() == ["True", "True"]


def test_children_of_an_activated_process_find_the_runtime(fresh):
    code = """
import subprocess, sys
simulator.ensure()
child = "from ems import simulator; print(simulator.state(), simulator.ensure())"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    assert run(code, fresh).stdout.split() == ["simulated", "True"]


@pytest.mark.parametrize("name", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_a_cann_that_does_not_load_is_not_replaced(fresh, name):
    errors = run("simulator.ensure()", {**fresh, name: "/usr/local/Ascend"}).stderr
    assert "CannError: libascendcl.so:" in errors
    assert f"({name} is set): has CANN's set_env.sh been sourced?" in errors


@pytest.fixture
def compiled(tmp_path):
    """Return a folder with a libascendcl.so that is not ours."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")

    def compile_library(name, source, *arguments):
        (tmp_path / "source.c").write_text(source)
        library = tmp_path / name
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", library]
        subprocess.run([*command, tmp_path / "source.c", *arguments], check=True)
        return library

    return tmp_path, compile_library


def test_a_cann_that_loads_is_used_as_it_is(fresh, compiled):
    folder, compile_library = compiled
    compile_library("libascendcl.so", "int aclInit(void) { return 0; }")
    code = "print(simulator.state(), simulator.ensure())"
    result = run(code, {**fresh, "LD_LIBRARY_PATH": str(folder)})
    assert result.stdout.split() == ["real", "False"]


def test_a_cann_without_its_driver_is_not_replaced(fresh, compiled):
    folder, compile_library = compiled
    driver = compile_library("libascend_hal.so", "int driver(void) { return 0; }")
    source = "int driver(void); int aclInit(void) { return driver(); }"
    compile_library("libascendcl.so", source, f"-L{folder}", "-lascend_hal")
    driver.unlink()
    errors = run("simulator.ensure()", {**fresh, "LD_LIBRARY_PATH": str(folder)}).stderr
    assert "CannError: libascend_hal.so:" in errors
    assert "libascendcl.so exists" in errors


def test_activating_after_torch_npu_is_too_late(fresh):
    code = "import sys; sys.modules['torch_npu'] = simulator; simulator.activate()"
    assert "RuntimeError: torch_npu is imported already" in run(code, fresh).stderr


@pytest.fixture
def unbuilt(fresh, tmp_path):
    """Return the environment of a process that has the sources but not the libraries."""
    package = tmp_path / "ems" / "simulator"
    package.mkdir(parents=True)
    (tmp_path / "ems" / "__init__.py").touch()
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(Path(simulator.__file__).with_name(name), package)
    (package / "home" / "lib64").mkdir(parents=True)
    # the libraries of which there is no runtime are no installation either
    (package / "home" / "lib64" / "libhccl.so").touch()
    return {**fresh, "PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("call", ["ensure()", "activate()", "environment({})"])
def test_a_runtime_that_was_not_built_says_what_to_run(unbuilt, call):
    errors = run(f"simulator.{call}", unbuilt).stderr
    assert "RuntimeError: the simulated CANN runtime has not been built" in errors
    assert "run `pip install -e .` in the source tree" in errors


def test_the_launcher_says_so_as_well(unbuilt):
    errors = python("-m", "ems.simulator", "-c", "pass", env=unbuilt).stderr
    assert "run `pip install -e .` in the source tree" in errors


def test_an_environment_keeps_the_search_path_it_had():
    variables = {"LD_LIBRARY_PATH": f"/opt/lib:{LIBRARIES}", "HOME": "/home"}
    simulator.environment(variables)
    assert variables == {
        "LD_LIBRARY_PATH": f"{LIBRARIES}:/opt/lib",
        "ASCEND_HOME_PATH": str(simulator.HOME),
        "ASCEND_OPP_PATH": str(simulator.HOME / "opp"),
        "HOME": "/home",
    }


def test_the_home_has_what_torch_npu_asks_of_an_installation():
    for name in ("runtime", "compiler", "opp"):
        assert (simulator.HOME / name).is_dir()
    version = (simulator.HOME / "ascend_toolkit_install.info").read_text()
    assert version.startswith("version=")


def test_the_launcher_passes_arguments_input_and_exit_code(fresh, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from ems import simulator\n"
        "print(sys.argv[1:], input(), simulator.state(), sys.path[0])\n"
        "sys.exit(7)\n"
    )
    arguments = ["a b", "", "*", "-c"]
    result = python("-m", "ems.simulator", script, *arguments, env=fresh, stdin="told\n")
    assert result.stdout == f"{arguments} told simulated {tmp_path}\n"
    assert (result.returncode, result.stderr) == (7, "")


@pytest.mark.parametrize("arguments", [["-c", "print(1)"], ["-m", "this"]])
def test_the_launcher_runs_code_and_modules(fresh, arguments):
    result = python("-m", "ems.simulator", *arguments, env=fresh)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_the_launcher_without_arguments_says_how_it_is_used(fresh):
    result = python("-m", "ems.simulator", env=fresh)
    assert result.returncode == 2
    assert result.stderr == "usage: python -m ems.simulator SCRIPT|-m MODULE|-c CODE ARGS...\n"


def test_importing_the_simulator_does_not_import_torch(fresh):
    code = "import sys; import ems.simulator.control; print('torch' in sys.modules)"
    assert run(code, fresh).stdout == "False\n"
