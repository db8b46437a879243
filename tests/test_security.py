"""What must stay secret does, nobody else's files are used, and nothing listens unasked."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from contracts.mooncake_cluster import cluster, needs_mooncake
from rich.console import Console
from rich.traceback import Traceback
from scripts import REGISTERED, run_script
from typer.testing import CliRunner

from ems import CcConfig_v1, Ems, EmsConfig, EmsException
from ems.common.secret import Secret, masked
from ems.config import read_settings
from ems.pool.registry import open_pool
from ems.telemetry.profile_log import ProfileLog
from ems.telemetry.run_dir import RunDirError, descriptions, open_run_dir
from ems.telemetry.tally import CallRecord
from ems_cli.app import app
from ems_cli.diagnostics.host_pages import HostPages

SECRET = "s3cr3t-Wq8Zp"  # noqa: S105 - that is what it is for
URLS = (
    f"mooncake://127.0.0.1:1?auth_token={SECRET}",
    f"mooncake://127.0.0.1:1?staging=1MiB&password={SECRET}",
    f"mooncake://user:{SECRET}@127.0.0.1:1",
    f"lmdb://user:{SECRET}@/dev/shm/nowhere",
    f"lmdb:///dev/shm/nowhere?secret_key={SECRET}",
    f"tiered+lmdb:///dev/shm/nowhere?local=1GiB&access_key={SECRET}",
    f"memory://?api_key={SECRET}",
    f"nowhere://?credential={SECRET}",
    f"memory://?auth={SECRET}&auth={SECRET}",
    f"http://[{SECRET}?token={SECRET}",
)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def config(access_key=SECRET, pool="memory://?capacity=16MiB", **fields):
    cache = CcConfig_v1(**{"rank_id": 0, "device_id": 0, "model_id": "m", **fields})
    return EmsConfig(access_id="a", access_key=access_key, cc_config_v1=cache, pool=pool)


def told(failure):
    """Return everything that a failure can tell, with the locals of the library's frames."""
    failures = [failure]
    while failures[-1].__cause__ or failures[-1].__context__:
        failures.append(failures[-1].__cause__ or failures[-1].__context__)
    texts = [text for one in failures for text in (str(one), repr(one), repr(vars(one)))]
    lines = traceback.TracebackException.from_exception(failure, capture_locals=True).format()
    console = Console(file=io.StringIO(), width=200)
    console.print(
        Traceback.from_exception(
            type(failure), failure, failure.__traceback__, show_locals=True, locals_max_string=None
        )
    )
    return "\n".join([*texts, *lines, console.file.getvalue()])


def started(wanted):
    """Call `Ems.init` from a frame whose locals do not matter: those are the caller's own."""
    try:
        Ems.init(wanted)
    except EmsException as failure:
        failure.__traceback__ = failure.__traceback__.tb_next
        return told(failure)
    finally:
        Ems.shutdown()
    return None


@pytest.mark.parametrize(
    "changes",
    [
        {"access_key": SECRET * 100},
        {"access_key": [SECRET]},
        {"access_key": SECRET.encode()},
        {"model_id": ""},
        {"rank_id": -1},
        {"kvcache_type": "nothing"},
        {"pool": "nowhere://"},
        {"pool": "memory://?capacity=1PiB"},
        {"pool": "mooncake://127.0.0.1:1?staging=1MiB"},
        {"device_id": 99},
    ],
    ids=lambda changes: "-".join(f"{name}" for name in changes),
)
def test_the_access_key_is_in_no_failure_and_in_no_variable_of_the_librarys_frames(changes):
    text = started(config(**changes))
    assert text
    assert "read_settings" in text or "init" in text
    assert SECRET not in text


def test_the_access_key_is_not_written_by_what_holds_it():
    settings = read_settings(config())
    assert settings.access_key == Secret(SECRET)
    assert settings == read_settings(config())
    assert settings != read_settings(config(access_key="another"))
    for one in (config(), settings, settings.access_key, vars(settings), [settings.access_key]):
        assert SECRET not in f"{one} {one!r}"
    with pytest.raises(TypeError):
        json.dumps(settings.access_key)


@pytest.mark.parametrize("url", URLS)
def test_a_secret_in_the_url_of_a_pool_is_in_no_failure(url):
    with pytest.raises(EmsException) as refused:
        open_pool(url, HostPages())
    assert SECRET not in str(refused.value).replace(f"http://[{SECRET}", "")
    if not url.startswith("http"):
        assert "***" in str(refused.value)


@pytest.mark.parametrize("url", URLS)
def test_masking_leaves_nothing_of_a_secret_and_all_of_the_rest(url):
    assert SECRET not in masked(url).replace(f"http://[{SECRET}", "")
    assert masked(url).partition("://")[0] == url.partition("://")[0]
    plain = "lmdb:///dev/shm/pool?capacity=1GiB&checksum=on"
    assert masked(plain) == plain


COMMANDS = (
    ("pool", "stats"),
    ("pool", "keys", "--json"),
    ("pool", "clear", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("bench", "--json", "--pool", URLS[0]),
    ("verify", "--pool", URLS[0]),
    ("inspect",),
    ("inspect", "--json"),
    ("inspect", "--prometheus"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_secret_in_the_environment_is_in_no_output_of_a_command(command, monkeypatch):
    monkeypatch.setenv("EMS_POOL", URLS[0])
    monkeypatch.setenv("EMS_ACCESS_KEY", SECRET)
    result = CliRunner().invoke(app, command)
    assert result.output
    assert SECRET not in result.output
    assert result.exit_code != 70


@pytest.mark.parametrize("command", ["stats", "keys", "clear", "remove"])
def test_a_secret_on_the_command_line_is_in_no_output(command):
    result = CliRunner().invoke(app, ["pool", command, URLS[1]])
    assert result.exit_code == 2
    assert SECRET not in result.output


LIVING = f"""
{REGISTERED}
from ems.telemetry.run_dir import default_run_dir, descriptions
config = CcConfig_v1(rank_id=0, device_id=0, model_id="m")
Ems.init(EmsConfig(access_id="a", access_key={SECRET!r}, cc_config_v1=config,
                   pool="memory://?capacity=64MiB&segment=16MiB"))
kv = [[torch.zeros(8, BS, 2, 8, dtype=torch.float16, device="npu:0")]]
cc = Ems.get_cc()
cc.register_kvcache(kv)
cc.save(sl(0), [1], [BS])
until = time.monotonic() + 60
while not [d for d in descriptions(default_run_dir()) if "save" in d.content["counters"]]:
    assert time.monotonic() < until
    time.sleep(0.02)
import os
from typer.testing import CliRunner
from ems_cli.app import app
pid, out = str(os.getpid()), sys.argv[1]
for arguments in (
    ["inspect"], ["inspect", "--details"], ["inspect", "--json"], ["inspect", "--prometheus"],
    ["inspect", "--pid", pid, "--save", out + "/saved.json"], ["inspect", out + "/saved.json"],
    ["inspect", "hash", out + "/saved.json", out + "/saved.json"],
    ["doctor", "--json", "--bundle", out + "/bundle.zip"],
):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 1), (arguments, result.output)
    print(result.output)
"""


def test_what_a_process_with_an_access_key_leaves_and_shows_does_not_hold_it(tmp_path):
    script = tmp_path / "living.py"
    script.write_text(LIVING.replace(SECRET, "".join(reversed(SECRET))))
    source = (
        "import sys, runpy\n"
        f"sys.argv = ['living.py', {str(tmp_path)!r}]\n"
        f"exec(compile(open({str(script)!r}).read(), 'living.py', 'exec'))\n"
    )
    found = run_script(
        source,
        EMS_RUN_DIR=str(tmp_path / "run"),
        ENABLE_CC_PROFILING="1",
        EMS_SDK_LOG=str(tmp_path / "log"),
    )
    script.unlink()
    reversed_ = "".join(reversed(SECRET))
    assert "pid" in found.stdout
    assert reversed_ not in found.stdout + found.stderr
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.suffix for path in left}
    assert {".json", ".zip", ".log"} <= names
    for path in left:
        assert reversed_.encode() not in _content(path)


def _content(path):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return b"".join(archive.read(name) for name in archive.namelist())
    return path.read_bytes()


# whose files


@root_only
def test_a_run_directory_of_another_user_is_refused(tmp_path):
    tmp_path.joinpath("run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(RunDirError, match="belongs to user 12345, not to 0"):
        open_run_dir(tmp_path / "run")


@root_only
def test_a_description_of_another_user_is_passed_over(tmp_path):
    mine, others = tmp_path / "1.json", tmp_path / "2.json"
    for path in (mine, others):
        path.write_text(json.dumps({"pid": 1, "process_start": 1}))
    os.chown(others, 12345, 12345)
    assert [found.path for found in descriptions(tmp_path)] == [mine]


@pytest.fixture
def profile_path(tmp_path):
    log = ProfileLog(tmp_path / "log")
    log.close()
    [path] = (tmp_path / "log").iterdir()
    path.unlink()
    return path


def test_a_profile_is_readable_by_its_user_alone(profile_path):
    with closing(ProfileLog(profile_path.parent)):
        assert profile_path.stat().st_mode & 0o777 == 0o600


def test_a_profile_is_not_written_through_a_link(profile_path, tmp_path):
    (tmp_path / "precious").write_text("mine")
    profile_path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        ProfileLog(profile_path.parent)
    assert (tmp_path / "precious").read_text() == "mine"


@root_only
def test_a_profile_is_not_written_to_a_file_of_another_user(profile_path):
    profile_path.touch()
    os.chown(profile_path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        ProfileLog(profile_path.parent)
    assert profile_path.read_text() == ""


def test_a_link_put_in_the_place_of_a_profile_later_ends_it(profile_path, tmp_path, monkeypatch):
    monkeypatch.setattr("ems.telemetry.profile_log._NBYTES", 100)
    with closing(ProfileLog(profile_path.parent)) as log:
        monkeypatch.setattr(log._file, "rotate", lambda source, target: _planted(source, tmp_path))
        for _ in range(5):
            log.add(CallRecord("save", 1, 1, {}, 1, {}, 0.1))
    assert (tmp_path / "precious").read_text() == "mine"


def _planted(source, room):
    (room / "precious").write_text("mine")
    Path(source).unlink()
    Path(source).symlink_to(room / "precious")


# who listens


def listening(pid):
    """Return the addresses at which a process listens, as (host, port)."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(each.readlink())
        except OSError:  # closed meanwhile
            continue
        inodes.add(name.removeprefix("socket:[").removesuffix("]"))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, _, port = fields[1].partition(":")
                words = b"".join(
                    bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)
                )
                found.append((socket.inet_ntop(family, words), int(port, 16)))
    return found


def test_the_look_at_a_process_finds_what_listens():
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        with socket.socket(family) as mine:
            mine.bind((host, 0))
            assert (host, mine.getsockname()[1]) not in listening(os.getpid())
            mine.listen()
            assert (host, mine.getsockname()[1]) in listening(os.getpid())


QUIET = f"""
{REGISTERED}
cc, kv = boot()
cc.save(sl(0), [1], [BS])
Ems.check_health()
from typer.testing import CliRunner
from ems_cli.app import app
assert CliRunner().invoke(app, ["inspect", "--prometheus"]).exit_code == 0
import os
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_security import listening
print(listening(os.getpid()))
"""


def test_a_process_of_the_sdk_listens_nowhere_nor_does_its_output_for_prometheus(tmp_path):
    assert run_script(QUIET, EMS_RUN_DIR=str(tmp_path)).stdout.split("\n")[-2] == "[]"


class TestMooncake:
    pytestmark = needs_mooncake

    def test_a_client_listens_nowhere_unless_it_lends_memory(self):
        with cluster() as trial:
            before = listening(os.getpid())
            pool = open_pool(f"{trial.url}&staging=1MiB", HostPages())
            with closing(pool):
                assert pool.lookup(["absent"]) == [None]
                pool.acquire(["absent"], [1], deadline=time.monotonic() + 60)
                beyond = [one for one in listening(os.getpid()) if one not in before]
            assert len(beyond) <= 2, "more than Mooncake's own two ports of data"

    def test_of_pool_serve_only_the_ports_of_data_are_beyond_loopback_and_it_says_so(
        self, tmp_path
    ):
        serving = subprocess.Popen(
            [sys.executable, "-m", "ems_cli", "pool", "serve", "--capacity", "64MiB", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "EMS_RUN_DIR": str(tmp_path)},
        )
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                line = serving.stdout.readline()
                assert line, serving.stderr.read()
                text += line
            report = json.loads(text)
            assert listening(serving.pid) == []
            master = listening(report["master_pid"])
            assert master
            assert {host for host, _ in master} == {"127.0.0.1"}
            node = listening(report["node_pid"])
            beyond = [host for host, _ in node if host != "127.0.0.1"]
            assert len(beyond) <= 2
            assert len(node) > len(beyond)
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.wait(60)
            serving.stdout.close()
            serving.stderr.close()
