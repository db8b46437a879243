import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from cli_text import golden, printed
from contracts.mooncake_cluster import eventually, needs_mooncake
from described import described
from typer.testing import CliRunner

from ems.common.exception import PoolUnavailable
from ems.layout.key import PoolKey, buffer_key_prefix, buffer_keys
from ems.pool.base import Place
from ems.pool.mooncake import trial as cluster_module
from ems.pool.registry import open_pool
from ems.telemetry.run_dir import process_start
from ems_cli.app import app
from ems_cli.diagnostics import pool_serve
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.host_pages import HostPages
from ems_cli.diagnostics.pool_address import place_of, pool_address
from ems_cli.diagnostics.pool_changes import RemovalReport
from ems_cli.diagnostics.pool_contents import KeyFigures, KeysReport, StatsReport
from ems_cli.diagnostics.pool_namespaces import NamespaceFigures, keys_of, namespace_of
from ems_cli.diagnostics.pool_serve import ServeReport
from ems_cli.render.pool import keys_text, removal_text, serve_text, stats_text

CAPACITY = 8 << 20
FIRST, SECOND = "ab" * 16, "cd" * 16
PRINT = "0f" * 16
KEYS = [
    PoolKey(f"ems1-{namespace}-{group}-{PRINT}-i{number:x}")
    for namespace, group, number in [
        *((FIRST, 0, number) for number in (1, -2, 3)),
        *((FIRST, 1, number) for number in (1, 2)),
        (SECOND, 0, 7),
    ]
]
NBYTES = 10_000


def fill(url, keys=KEYS):
    with closing(open_pool(url, HostPages())) as pool:
        places = pool.reserve(keys, [128] * len(keys), [NBYTES] * len(keys), deadline=None)
        for place in places:
            assert isinstance(place, Place)
            ctypes.memset(place.address, 7, place.nbytes)
        pool.commit(places)


def keys_in(url):
    with closing(open_pool(url, HostPages())) as pool:
        return list(pool.keys())


@pytest.fixture
def files(tmp_path):
    return tmp_path / "pool"


@pytest.fixture
def url(files):
    """A pool with entries, by the URL that leaves its capacity open."""
    fill(f"lmdb://{files}?capacity={CAPACITY}&staging=1MiB")
    return f"lmdb://{files}"


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def run(run_dir):
    def call(*arguments, pool=""):
        environment = {"COLUMNS": "80", "EMS_RUN_DIR": str(run_dir), "EMS_POOL": pool}
        return CliRunner().invoke(app, ["pool", *arguments], env=environment)

    return call


def said(result):
    return " ".join((result.stdout + result.stderr).split())


def told(result):
    assert result.exit_code == 0, said(result)
    return json.loads(result.stdout)


def describe(run_dir, pid, *, alive=True, **changes):
    start = process_start(os.getpid()) if alive else 0
    content = described(pid=os.getpid(), process_start=start, **changes)
    (run_dir / f"{pid}.json").write_text(json.dumps(content))
    return content


def test_stats_are_of_the_pool_and_not_of_the_process_that_asks(run, url):
    found = told(run("stats", url, "--json"))
    assert (found["engine"], found["capacity_nbytes"]) == ("lmdb", CAPACITY)
    assert found["backed_nbytes"] == CAPACITY
    assert found["used_nbytes"] + found["free_nbytes"] == CAPACITY
    assert len(KEYS) * NBYTES <= found["used_nbytes"] == found["evictable_nbytes"]
    assert (found["entries"], found["evictions"], found["notes"]) == (len(KEYS), 0, [])
    assert [(one["digest"], one["entries"], one["layouts"]) for one in found["namespaces"]] == [
        (FIRST, 5, 2),
        (SECOND, 1, 1),
    ]


def test_another_capacity_in_the_url_changes_nothing(run, url):
    before = set(keys_in(url))
    found = told(run("stats", f"{url}?capacity=64MiB&staging=2MiB", "--json"))
    assert found["capacity_nbytes"] == CAPACITY
    assert set(keys_in(url)) == before


def test_the_pool_is_taken_from_the_environment(run, url):
    assert told(run("stats", "--json", pool=url))["entries"] == len(KEYS)


def test_a_tiered_pool_is_its_shared_part(run, url):
    text = url.replace("lmdb", "tiered+lmdb", 1) + "?local=1GiB"
    assert told(run("stats", text, "--json"))["entries"] == len(KEYS)


def test_processes_of_this_host_name_their_namespaces(run, run_dir, url):
    content = describe(run_dir, 1, pool_url=url, access_id="tenant-1")
    describe(run_dir, 2, pool_url="lmdb:///elsewhere", model_id="other")
    dead = describe(run_dir, 3, alive=False, pool_url=url, model_id="gone")
    buffers = buffer_keys(buffer_key_prefix("tenant-1", "some-model"), ["a", "b"])
    digests = [content["namespace_digest"], dead["namespace_digest"]]
    fill(url, [PoolKey(f"ems1-{digest}-0-{PRINT}-i1") for digest in digests] + buffers)
    found = told(run("stats", url, "--json"))
    assert found["pids"] == [os.getpid()]
    assert (found["held_nbytes"], found["reserved_nbytes"]) == (1 << 20, 2 << 20)
    names = {one["name"]: (one["pids"], one["layouts"]) for one in found["namespaces"]}
    assert names["some-model, tenant tenant-1, tp 3 of 8"] == ([os.getpid()], 1)
    assert names["some-model, tenant tenant-1, buffers"] == ([os.getpid()], 1)
    assert names["gone, tp 3 of 8"] == ([], 1)


def test_keys_of_others_are_counted_apart(run, url):
    fill(url, [PoolKey("other-tool"), PoolKey("ems0-a-0-b-c")])
    found = told(run("stats", url, "--json"))
    assert [one["entries"] for one in found["namespaces"] if not one["digest"]] == [2]
    assert found["notes"] == ["2 keys are not as this version of ems writes them"]


def test_keys_come_with_tokens_and_bytes(run, url):
    found = told(run("keys", url, "--json"))
    assert found["matching"] == len(KEYS)
    assert {one["key"] for one in found["keys"]} == set(KEYS)
    assert {(one["tokens"], one["nbytes"]) for one in found["keys"]} == {(128, NBYTES)}


def test_keys_of_one_namespace_by_the_first_digits_of_its_digest(run, url):
    found = told(run("keys", url, "--namespace", SECOND[:8], "--json"))
    assert (found["namespace"], [one["key"] for one in found["keys"]]) == (SECOND, KEYS[-1:])


def test_a_limit_is_told(run, url):
    result = run("keys", url, "--limit", "2")
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "these are 2 of 6; --limit N shows more\n"


def test_more_keys_than_one_batch(run, url):
    fill(url, [PoolKey(f"ems1-{SECOND}-0-{PRINT}-i{number:x}") for number in range(16, 316)])
    assert len(told(run("keys", url, "--limit", "1000", "--json"))["keys"]) == 306


@pytest.mark.parametrize("wanted", ["", "abababa", "ffffffff"])
def test_a_namespace_that_is_not_there_or_too_short_is_refused(wanted):
    with pytest.raises(BadInput, match=f"no entry has it; there are: {FIRST}"):
        keys_of(KEYS, wanted)


def test_a_namespace_that_two_begin_with_is_refused():
    keys = [PoolKey(f"ems1-{FIRST[:-1]}{last}-0-{PRINT}-i1") for last in "ab"]
    with pytest.raises(BadInput, match="2 begin so"):
        keys_of(keys, FIRST[:8])
    assert keys_of(keys, FIRST) == keys[1:]


def test_the_namespace_of_a_key():
    assert [namespace_of(key) for key in KEYS] == [FIRST] * 5 + [SECOND]
    assert namespace_of("ems1-doctor-1-ff") == "doctor"
    assert [namespace_of(key) for key in ("ems2-a-0-b-i1", "", "ems1-a")] == [""] * 3


def test_clear_without_yes_tells_how_much_would_go_and_does_nothing(run, url):
    result = run("clear", url)
    assert result.exit_code == 2
    assert f"'--yes': say it to remove 6 entries from {url}; nothing was" in said(result)
    assert len(keys_in(url)) == len(KEYS)


def test_clear(run, run_dir, url):
    describe(run_dir, 1, pool_url=url)
    result = run("clear", url, "--yes")
    assert said(result) == (
        f"6 entries removed from {url} pid {os.getpid()} will miss what was removed"
    )
    assert keys_in(url) == []


def test_remove_by_key(run, url):
    result = run("remove", url, KEYS[1], KEYS[5], KEYS[1], "--json")
    found = told(result)
    assert (found["what"], found["removed"], found["missing"]) == ("keys", 2, [])
    assert sorted(keys_in(url)) == sorted({*KEYS} - {KEYS[1], KEYS[5]})


def test_remove_takes_the_pool_from_the_environment_and_tells_what_is_not_there(run, url):
    result = run("remove", KEYS[0], "nope", pool=url)
    assert result.exit_code == 1
    assert result.stdout == f"1 entry removed from {url}\nnot there: nope\n"


def test_remove_a_namespace(run, url):
    found = told(run("remove", url, "--namespace", FIRST, "--json"))
    assert (found["namespace"], found["removed"]) == (FIRST, 5)
    assert keys_in(url) == KEYS[5:]


def test_only_processes_that_use_it_miss_what_was_removed(run, run_dir, url):
    digest = describe(run_dir, 1, pool_url=url)["namespace_digest"]
    key = PoolKey(f"ems1-{digest}-0-{PRINT}-i1")
    fill(url, [key])
    assert told(run("remove", url, "--namespace", FIRST, "--json"))["pids"] == []
    assert told(run("remove", url, KEYS[5], "--json"))["pids"] == []
    assert told(run("remove", url, key, "--json"))["pids"] == [os.getpid()]
    fill(url, [key])
    assert told(run("remove", url, "--namespace", digest, "--json"))["pids"] == [os.getpid()]


@pytest.mark.parametrize("arguments", [[], [KEYS[0], "--namespace", FIRST]])
def test_remove_needs_keys_or_a_namespace(run, url, arguments):
    result = run("remove", url, *arguments)
    assert result.exit_code == 2
    assert "'KEY': give keys or --namespace, one of them" in said(result)


@pytest.mark.parametrize("command", [["stats"], ["keys"], ["clear", "--yes"], ["remove", "k"]])
@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ("", "'URL': EMS_POOL is not set, and the default pool is inside of each process"),
        ("memory://?capacity=1GiB", "'EMS_POOL': memory://?capacity=1GiB is inside of one process"),
        ("redis://host", "'EMS_POOL': redis://host is of no engine that is known"),
        ("nonsense", "'EMS_POOL': the pool 'nonsense' is not a URL"),
        ("lmdb://host/path", "lmdb is files of this host"),
        ("lmdb:///nowhere/pool", "there is no pool in /nowhere/pool"),
        ("mooncake://host", "the master's host and port are needed"),
    ],
)
def test_what_is_no_shared_pool_is_wrong_usage(run, command, pool, why):
    result = run(*command, pool=pool)
    assert result.exit_code == 2
    assert why in said(result)


@pytest.mark.parametrize("command", [["stats"], ["keys"], ["remove", "--namespace", FIRST]])
def test_without_the_metrics_port_mooncake_lists_nothing(run, command):
    result = run(*command, pool="mooncake://127.0.0.1:1")
    assert (result.exit_code, "add metrics=PORT" in said(result)) == (2, True)


class TestWithoutAMaster:
    pytestmark = needs_mooncake

    def test_a_pool_that_does_not_answer_is_a_failure(self, run):
        result = run("stats", "mooncake://127.0.0.1:1?metrics=1", "--json")
        error = json.loads(result.stdout)["error"]
        assert (result.exit_code, error["code"]) == (3, "EMS_IO_ERROR")
        assert "master at 127.0.0.1:1 does not accept connections" in error["message"]


def test_asking_for_a_pool_makes_none(run, files):
    assert run("stats", f"lmdb://{files}").exit_code == 2
    assert not files.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [({"boot": "another"}, "started anew"), ({"layout": 0}, "another version of ems")],
)
def test_a_pool_that_opening_would_make_anew_is_left_alone(run, url, files, change, why):
    agreed = files / "pool.json"
    agreed.write_text(json.dumps({**json.loads(agreed.read_text()), **change}))
    before = {path.name: path.stat().st_mtime_ns for path in files.iterdir()}
    result = run("stats", url)
    assert (result.exit_code, why in said(result)) == (2, True)
    assert {path.name: path.stat().st_mtime_ns for path in files.iterdir()} == before


def test_secrets_in_a_url_are_not_shown():
    with pytest.raises(BadInput) as refused:
        pool_address("redis://host?token=hush", {})
    assert "hush" not in str(refused.value)


def test_places_are_alike_for_urls_of_the_same_pool():
    assert place_of("lmdb:///a?capacity=1GiB") == place_of("tiered+lmdb:///a?local=1MiB")
    assert place_of("mooncake://h:1") == place_of("mooncake://h:1?metrics=2&segment=1GiB")
    assert place_of("mooncake://h:1") != place_of("mooncake://h:2")
    assert place_of("memory://?capacity=1GiB") is None


STATS = StatsReport(
    url="mooncake://node-7:50051?metrics=9003",
    engine="mooncake",
    capacity_nbytes=64 << 30,
    backed_nbytes=64 << 30,
    used_nbytes=48 << 30,
    free_nbytes=16 << 30,
    evictable_nbytes=48 << 30,
    largest_free_nbytes=256 << 20,
    held_nbytes=3 << 20,
    reserved_nbytes=0,
    entries=5312,
    evictions=120,
    namespaces=(
        NamespaceFigures(FIRST, 5000, 1, "qwen3-32b, tenant me@home, tp 0 of 8", (4242, 4243)),
        NamespaceFigures(SECOND, 300, 2, None, ()),
    ),
    pids=(4242, 4243),
    notes=("12 objects of the cluster do not belong to ems",),
)
SERVE = ServeReport(
    url="mooncake://127.0.0.1:50051?metrics=9003",
    metrics_url="http://127.0.0.1:9003/metrics",
    capacity_nbytes=4 << 30,
    lease_seconds=2.0,
    pid=41,
    master_pid=42,
    node_pid=43,
)
LISTED = KeysReport(
    "lmdb:///pool",
    "lmdb",
    None,
    2,
    (KeyFigures(KEYS[1], FIRST, 128, 8 << 20), KeyFigures("odd\x1b[31m", "", None, None)),
)
REMOVED = RemovalReport("lmdb:///pool", "lmdb", "keys", None, 1, ("odd\x1b[31m",), (4242,))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (stats_text(STATS), "pool_stats.txt"),
        (serve_text(SERVE), "pool_serve.txt"),
        (removal_text(REMOVED), "pool_removed.txt"),
    ],
)
def test_reports_look_like_this_at_80_columns(text, name):
    assert printed(text) == golden(name)


def test_keys_are_never_broken():
    assert keys_text(LISTED) + "\n" == golden("pool_keys.txt")


def taken_port():
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, listening.getsockname()[1]


def test_serve_refuses_a_port_that_is_taken(run):
    listening, port = taken_port()
    with listening:
        result = run("serve", "--capacity", "16MiB", "--port", str(port))
    assert (result.exit_code, f"port {port} cannot be had" in said(result)) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--capacity", "1MiB"], "Mooncake takes 16.00 MiB or more"),
        (["--capacity", "4096TiB"], "that this host has available"),
        (["--capacity", "much"], "'much' is not a size"),
        (["--port", "1024", "--metrics-port", "1024"], "--port has it already"),
        (["--port", "65536"], "'--port'"),
        (["--lease", "99999999999999999999"], "'--lease'"),
    ],
)
def test_serve_refuses_what_cannot_be(run, arguments, why):
    result = run("serve", *arguments)
    assert (result.exit_code, why in said(result)) == (2, True)


def test_serve_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(cluster_module, "find_spec", lambda _: None)
    result = run("serve", "--capacity", "16MiB")
    assert result.exit_code == 3
    assert "pip install 'ems[mooncake]'" in said(result)


def test_serve_names_the_libraries_that_mooncake_lacks(run, monkeypatch, tmp_path):
    program = tmp_path / "mooncake_master"
    program.write_text("#!/bin/sh\nexit 127\n")
    monkeypatch.setattr(cluster_module, "_installed", lambda: tmp_path)
    result = run("serve", "--capacity", "16MiB")
    assert (result.exit_code, "apt-get install libibverbs1" in said(result)) == (3, True)


class Ended:
    """A trial whose master has ended."""

    nodes = ()

    class master:  # noqa: N801 - stands for an object
        poll = staticmethod(lambda: -9)


def test_a_process_that_ends_by_itself_is_a_failure():
    with pytest.raises(PoolUnavailable, match=r"master has ended by itself \(killed by SIGKILL\)"):
        pool_serve.Serving(Ended, SERVE, lambda: False).wait()


def test_a_process_that_ends_with_the_signal_is_none():
    answers = iter([False, True, True])  # the signal has come when the end is seen
    pool_serve.Serving(Ended, SERVE, lambda: next(answers)).wait()


def test_a_signal_before_the_cluster_is_up_is_no_failure(run, monkeypatch):
    def interrupted(_):
        signal.raise_signal(signal.SIGTERM)
        raise PoolUnavailable("the master has got it, too")

    monkeypatch.setattr(cluster_module.Trial, "start_master", interrupted)
    result = run("serve", "--capacity", "16MiB")
    assert (result.exit_code, said(result)) == (0, "Mooncake has ended")


def test_signals_are_as_before_when_the_cluster_has_ended(run, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cluster_module, "find_spec", lambda _: None)
    run("serve", "--capacity", "16MiB")
    assert signal.getsignal(signal.SIGTERM) is before


def program(*arguments):
    return [sys.executable, "-m", "ems_cli", "pool", *arguments]


@contextmanager
def served(run_dir, **options):
    """The command at work, and what it told; it is interrupted at the end of the block."""
    environment = {**os.environ, "EMS_RUN_DIR": str(run_dir)}
    with subprocess.Popen(
        program("serve", "--capacity", "64MiB", "--json"),
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    ) as child:
        try:
            text = ""
            while not text.endswith("}\n"):
                line = child.stdout.readline()
                assert line, child.stderr.read()
                text += line if line != "}" else ""
            yield child, json.loads(text)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            child.communicate(timeout=60)


def is_gone(pid):
    return process_start(pid) is None


def is_free(port):
    try:
        socket.create_server(("127.0.0.1", int(port))).close()
    except OSError:
        return False
    return True


class TestServing:
    pytestmark = needs_mooncake

    def test_a_pool_from_start_to_end(self, run, run_dir):
        with served(run_dir) as (child, up):
            url = up["url"]
            assert re.fullmatch(r"mooncake://127\.0\.0\.1:\d+\?metrics=\d+", url)
            fill(f"{url}&staging=1MiB")
            found = told(run("stats", "--json", pool=url))
            assert (found["capacity_nbytes"], found["entries"]) == (64 << 20, len(KEYS))
            assert found["capacity_nbytes"] == up["capacity_nbytes"] == found["backed_nbytes"]
            assert {one["digest"]: one["entries"] for one in found["namespaces"]} == {
                FIRST: 5,
                SECOND: 1,
            }
            listed = told(run("keys", url, "--json"))["keys"]
            assert {(one["key"], one["tokens"], one["nbytes"]) for one in listed} == {
                (key, 128, NBYTES) for key in KEYS
            }
            assert told(run("remove", url, KEYS[0], "--json"))["removed"] == 1
            assert told(run("remove", url, "--namespace", SECOND, "--json"))["removed"] == 1
            assert "remove 4 entries" in said(run("clear", url))
            assert told(run("clear", url, "--yes", "--json"))["removed"] == 4
            child.send_signal(signal.SIGINT)
            _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (0, "Mooncake has ended\n")
        assert is_gone(up["master_pid"])
        assert is_gone(up["node_pid"])

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_all_is_the_normal_end(self, run_dir, number):
        with served(run_dir, start_new_session=True) as (child, up):
            os.killpg(child.pid, number)
            child.communicate(timeout=60)
        assert child.returncode == 0
        assert is_gone(up["master_pid"])
        assert is_gone(up["node_pid"])

    @pytest.mark.parametrize("victim", ["master", "node"])
    def test_what_ends_by_itself_ends_the_rest(self, run_dir, victim):
        with served(run_dir) as (child, up):
            os.kill(up[f"{victim}_pid"], signal.SIGKILL)
            _, stderr = child.communicate(timeout=60)
        assert child.returncode == 3
        assert stderr == (
            f"Error: Mooncake's {victim} has ended by itself (killed by SIGKILL); what the pool "
            "held is gone (EMS_IO_ERROR)\n"
        )
        assert eventually(lambda: is_gone(up["master_pid"]) and is_gone(up["node_pid"]))

    def test_kill_9_of_the_command_ends_what_it_started_and_frees_the_ports(self, run_dir):
        with served(run_dir) as (child, up):
            child.kill()
            child.communicate(timeout=60)
        assert eventually(lambda: is_gone(up["master_pid"]) and is_gone(up["node_pid"]), seconds=10)
        rpc, metrics = re.findall(r"\d+", up["url"])[-2:]
        assert eventually(lambda: is_free(rpc) and is_free(metrics), seconds=10)
