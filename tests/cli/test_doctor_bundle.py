import json
import tarfile
import zipfile

import pytest
from described import described
from typer.testing import CliRunner

from ems.telemetry.run_dir import description_path
from ems_cli.app import app
from ems_cli.diagnostics.bundle import bundle_files, shown_environment
from ems_cli.diagnostics.masking import masked, masked_deeply


def run(*arguments, **environment):
    variables = {"COLUMNS": "80", **environment}
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env=variables)


UNSPEAKABLE = 'hunter2-Ünlock"quote'


def contents_of(file):
    if file.name.endswith(".zip"):
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    with tarfile.open(file) as archive:
        return {one.name: archive.extractfile(one).read().decode() for one in archive}


@pytest.mark.parametrize("name", ["bundle.tar.gz", "bundle.zip"])
def test_a_bundle_has_everything_but_secrets(tmp_path, name):
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    content = described(
        pool_url=f"mooncake://host?auth_token={UNSPEAKABLE}", extra={"access_key": UNSPEAKABLE}
    )
    description_path(run_dir, 4242).write_text(json.dumps(content))
    variables = {
        "EMS_POOL": "unknown://host?token=opensesame&capacity=1GiB",
        "EMS_RUN_DIR": str(run_dir),
        "EMS_ACCESS_KEY": UNSPEAKABLE,
        "ASCEND_SECRET": "hunter2",
        "TORCH_PASSWORD": "correct horse",
        "HOME_SECRET": "not of ours",
        "PYTHONHASHSEED": "7",
    }
    result = run("--only", "pool-url,pool,hash-seed", "--bundle", tmp_path / name, **variables)
    assert result.exit_code == 1  # there is no such pool
    files = contents_of(tmp_path / name)
    assert sorted(files) == [
        f"ems-bundle/{one}.json" for one in ("environment", "processes", "report", "system")
    ]
    text = "".join(files.values())
    for word in ("hunter2", "opensesame", "correct horse", "not of ours", "nlock"):
        assert word not in text
    environment = json.loads(files["ems-bundle/environment.json"])
    assert environment["EMS_ACCESS_KEY"] == environment["ASCEND_SECRET"] == "***"
    assert environment["EMS_POOL"] == "unknown://host?token=***&capacity=1GiB"
    assert environment["PYTHONHASHSEED"] == "7"
    assert "HOME_SECRET" not in environment
    assert json.loads(files["ems-bundle/processes.json"])[0]["pid"] == 4242


def test_a_bundle_never_replaces_a_file(tmp_path):
    file = tmp_path / "mine.zip"
    file.write_text("precious")
    result = run("--only", "python", "--bundle", file)
    assert (result.exit_code, file.read_text()) == (2, "precious")


def test_secrets_are_masked_by_name_and_in_urls():
    assert masked("memory://?api_key=abc&capacity=1GiB") == "memory://?api_key=***&capacity=1GiB"
    assert masked("http://me:pw@host/x") == "http://***@host/x"
    nested = {"a": [{"access_key": 7, "token_nbytes": 64, "password": None}]}
    assert masked_deeply(nested) == {
        "a": [{"access_key": "***", "token_nbytes": 64, "password": None}]
    }
    assert shown_environment({"HOME": "/root", "EMS_X": "1"}) == {"EMS_X": "1"}


def test_no_directory_of_processes_is_no_reason_to_fail(tmp_path):
    files = bundle_files({}, {}, tmp_path / "none")
    assert json.loads(files["processes.json"]) == []
