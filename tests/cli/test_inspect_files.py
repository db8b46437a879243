import json

import pytest
from cli_text import golden, printed
from described import described
from typer.testing import CliRunner

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems_cli.app import app
from ems_cli.diagnostics.compare import compare
from ems_cli.diagnostics.copy_figures import Cost, copy_report, slots_in, slots_of_blocks
from ems_cli.diagnostics.saved import Document, saved_report
from ems_cli.diagnostics.shape_request import ShapeRequest
from ems_cli.render.inspect import compare_text, copies_text, saved_text

TWO_GROUPS = [StoreLayerGroupDesc(128, [layer]) for layer in range(2)]
CHECK = {"name": "alignment", "verdict": "PASS", "found": "2 MiB", "wanted": "512 B", "fix": ""}
REGISTRATION = {
    "schema": 1,
    "simulated": True,
    "labels": ["SIMULATED"],
    "verdict": "WARN",
    "versions": {"ems": "0.1.0"},
    "zoom": None,
    "devices": [
        {
            "device": "npu:0",
            "device_name": "Ascend910B2",
            "shape": {
                "kvcache_type": "GQA",
                "num_layers": 2,
                "num_blocks": 16,
                "block_size": 128,
                "token_nbytes": 8192,
                "nbytes": 16 << 20,
                "parallel": {"tp": 8, "pp": 1, "rank": 3},
                "tp_rank": 3,
                "pp_rank": 0,
            },
            "layouts": [
                {
                    "name": "K",
                    "layers": "0-1",
                    "tensors": 2,
                    "shape": [16, 128, 8, 128],
                    "dtype": "float16",
                    "npu_format": "ND",
                }
            ],
            "checks": [
                CHECK,
                {
                    **CHECK,
                    "name": "ambiguity",
                    "verdict": "WARN",
                    "found": "two readings",
                    "fix": "check it",
                },
            ],
            "refusal": None,
        }
    ],
}


def process(name="a.json", **changes):
    return Document(name, "process", described(**changes))


SHAPE = "(2,4,16,8,128):float16:3"


def compared(first=None, second=None, what="hash"):
    return compare(what, process(**(first or {})), process("b.json", **(second or {})))


def run(*arguments, run_dir="/nowhere"):
    environment = {"COLUMNS": "80", "EMS_RUN_DIR": str(run_dir)}
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env=environment)


def said(result):
    return " ".join((result.stdout + result.stderr).split())


def test_the_same_process_names_everything_alike():
    report = compared()
    assert (report.same, report.difference) == (True, None)
    assert report.first_keys == report.second_keys
    assert report.first_keys[0].startswith("ems1-")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"access_id": "t2"}, "access_id differs, none and t2: entries of another tenant"),
        ({"model_id": "other"}, "model_id differs, some-model and other: entries of another"),
        ({"llm_engine": "mindie"}, "llm_engine differs, "),
        ({"tp_world_size": 4}, "tp_world_size differs, 8 and 4: the heads are split otherwise"),
        ({"rank_in_tp_group": 5}, "rank_in_tp_group differs, 3 and 5: each TP rank has its own"),
        ({"pp_world_size": 2}, "pp_world_size differs, 1 and 2"),
        ({"rank_in_pp_group": 1}, "rank_in_pp_group differs, 0 and 1"),
        ({"kvcache_type": "MLA"}, "tp_world_size differs, 8 and none"),
        ({"cache": {"groups": TWO_GROUPS}}, "layer groups differs, 1 and 2"),
        ({"cache": {"layers": 3}}, "layers differs, 0-1 and 0-2: the entries hold other layers"),
        ({"cache": {"block_size": 64}}, "tokens in a block differs, 128 and 64"),
        (
            {"cache": {"dtype": "bfloat16"}},
            "planes differs, 8 × 128 float16 + 8 × 128 float16 (layers 0-1) and 8 × 128 bfloat16",
        ),
    ],
)
def test_the_first_field_that_differs_is_told_in_words(changes, difference):
    report = compared(second=changes)
    assert report.same is False
    assert report.difference.startswith(difference)
    assert report.first_keys != report.second_keys


def test_mla_ranks_share_their_keys():
    ranks = [{"kvcache_type": "MLA", "rank_in_tp_group": rank} for rank in (0, 5)]
    assert compared(*ranks).same is True


def test_the_namespace_alone_leaves_the_layout_out():
    report = compared(second={"cache": {"block_size": 64}}, what="namespace")
    assert (report.same, report.first_keys) == (True, ())
    assert "tokens in a block" not in [field.name for field in report.fields]


@pytest.mark.parametrize(
    ("seeds", "warning"),
    [
        ((None, "0"), "PYTHONHASHSEED is not set in a.json: hashes made by Python's hash()"),
        (("random", None), "PYTHONHASHSEED is not set in a.json and b.json"),
        (("0", "1"), "PYTHONHASHSEED differs, 0 and 1"),
    ],
)
def test_seeds_that_spoil_hashes_are_warned_about(seeds, warning):
    first, second = ({"python_hash_seed": seed} for seed in seeds)
    assert any(one.startswith(warning) for one in compared(first, second).warnings)


def test_other_things_that_keep_processes_apart_are_warned_about():
    one = {"pool_url": "mooncake://a:1", "packages": {"ems": "0.1.0"}}
    two = {"pool_url": "mooncake://b:1", "packages": {"ems": "0.2.0"}}
    text = " ".join(compared(one, two).warnings)
    assert "the pools differ, mooncake://a:1 and mooncake://b:1" in text
    assert "the versions of ems differ, 0.1.0 and 0.2.0" in text
    assert "memory:// is a pool inside each process" in " ".join(compared().warnings)
    edited = compared(second={"namespace_digest": "0" * 32})
    assert any("was it edited?" in warning for warning in edited.warnings)


def test_a_registration_is_compared_in_what_it_tells():
    saved = Document("r.json", "registration", REGISTRATION)
    report = compare("hash", process(), saved)
    alike = {field.name for field in report.fields if field.same}
    assert {"tp_world_size", "rank_in_tp_group", "tokens in a block", "bytes per token"} <= alike
    assert report.same is None
    other = compare("hash", process(tp_world_size=4), saved)
    assert other.difference.startswith("tp_world_size differs, 4 and 8")


def test_the_exit_code_tells_whether_they_differ(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"]
    for file, model in zip(files, ("m", "m", "n"), strict=True):
        file.write_text(json.dumps(described(model_id=model)))
    assert run("hash", *files[:2]).exit_code == 0
    result = run("namespace", *files[1:], "--json")
    assert (result.exit_code, json.loads(result.stdout)["same"]) == (1, False)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "is neither a report of ems-cli register nor the description"),
        ('{"pid": 1, "namespace": {}, "counters": {}}', "is of another version of ems"),
        ('{"verdict": "PASS", "devices": [{}]}', "is of another version of ems"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, why):
    file = tmp_path / "x.json"
    file.write_text(content)
    for arguments in ([file], ["hash", file, file]):
        result = run(*arguments)
        assert (result.exit_code, why in said(result)) == (2, True), said(result)


def test_a_pid_without_a_description_is_refused(tmp_path):
    result = run("hash", "4194305", "4194305", run_dir=tmp_path)
    assert result.exit_code == 2
    assert "no process of that pid has left a description" in said(result)


def test_a_difference_looks_like_this_at_80_columns():
    report = compared(second={"model_id": "other", "python_hash_seed": None})
    assert printed(compare_text(report)) == golden("inspect_hash.txt")


def test_a_saved_registration_looks_like_this_at_80_columns():
    report = saved_report(Document("r.json", "registration", REGISTRATION), 0.0)
    assert printed(saved_text(report)) == golden("inspect_file.txt")


def copies(slots, *, launch=0.0, rate=None, each=None, blocks=64, **shape):
    request = ShapeRequest(**{"layers": 2, "block_size": 4, "blocks": blocks, **shape})
    return copy_report(request, slots, Cost(launch, rate), each)


def test_a_whole_block_is_one_span_in_each_plane():
    report = copies(slots_of_blocks([5, 9], 4))
    assert (report.hashes, report.blocks, report.runs, report.copies.spans) == (2, 2, 2, 8)
    assert report.copies.nbytes == 8 * 4 * 2048
    assert report.contiguous.spans == report.copies.spans


def test_scattered_slots_make_more_spans_than_blocks_in_a_row():
    report = copies([0, 2, 4, 6], blocks=2)
    assert (report.runs, report.copies.spans, report.contiguous.spans) == (4, 16, 4)
    assert "4.0 times the spans" in report.warnings[1]


def test_neighbouring_blocks_of_one_hash_are_one_span():
    report = copies(range(16), each=16)
    assert (report.hashes, report.copies.spans) == (1, 4)
    assert report.copies.largest_nbytes == 16 * 2048


def test_the_sizes_add_up_to_all_spans():
    report = copies([*range(8), 20], heads=1)
    sizes = report.copies.sizes
    assert sum(one.spans for one in sizes) == report.copies.spans
    assert sum(one.nbytes for one in sizes) == report.copies.nbytes
    assert all(one.from_nbytes <= one.nbytes / one.spans < 2 * one.from_nbytes for one in sizes)


def test_the_predicted_time_is_launches_and_bytes():
    report = copies(slots_of_blocks([1], 4), launch=1e-6, rate=1e9)
    assert report.copies.seconds == pytest.approx(4e-6 + 4 * 4 * 2048 / 1e9)
    assert copies([0]).copies.seconds is None


def test_lists_of_slots_keep_their_order():
    assert slots_in("3,0-2, 7", option="--slots") == [3, 0, 1, 2, 7]


def test_whole_blocks_are_as_large_as_the_shape_says():
    report = json.loads(run("plan", "--shape", SHAPE, "--blocks", "3", "--json").stdout)
    assert (report["blocks"], report["tokens"], report["hashes"]) == (1, 16, 1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give it or --blocks"),
        (["--slots", "1", "--blocks", "1"], "give it or --blocks"),
        (["--slots", "1,x"], "'x' is no number"),
        (["--slots", "-1"], "is no number"),
        (["--slots", "9-2"], "runs backwards"),
        (["--slots", "0-99999999"], "are too many"),
        (["--blocks", "0-99999"], "slots are too many"),
        (["--blocks", "1", "--bandwidth", "20"], "is no rate"),
        (["--blocks", "1", "--bandwidth", "20Gb/s"], "'20Gb/s' is in bits"),
        (["--blocks", "1", "--launch-us", "inf"], "--launch-us"),
        (["--shape", SHAPE, "--blocks", "4"], "'--blocks': there is no block 4"),
        (["--shape", SHAPE, "--slots", "64"], "'--slots': there is no block 4"),
        (["--blocks", "0", "--block-size", "1048576", "--heads", "9" * 20], "than any memory"),
    ],
)
def test_wrong_usage_of_plan_is_told(arguments, why):
    result = run("plan", *arguments)
    assert (result.exit_code, why in said(result)) == (2, True)


def test_a_copy_plan_looks_like_this_at_80_columns():
    report = copies([*range(12), 21, 22, 40], launch=3e-7, rate=2e10, blocks=12)
    assert printed(copies_text(report)) == golden("inspect_plan.txt")


def test_a_copy_plan_is_json_with_units_in_the_names():
    report = json.loads(run("plan", "--blocks", "5,9,7", "--model", "deepseek-v3", "--json").stdout)
    assert (report["schema"], report["copies"]["spans"]) == (1, 3 * 122)
    assert report["copies"]["nbytes"] == 3 * 128 * 70272
