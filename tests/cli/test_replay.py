import json

import pytest
from cli_text import golden, printed
from typer.testing import CliRunner

from ems_cli.app import app
from ems_cli.diagnostics import replay
from ems_cli.diagnostics.eviction import endless_hits, fifo_hits, foresight_hits
from ems_cli.diagnostics.replay import Entry, replay_trace, sweep
from ems_cli.diagnostics.trace_file import Kind, Request, read_trace
from ems_cli.render.replay import replay_text

NOTHING = Entry("nothing", None, None)

TRACE = [
    (1500, [0, 1, 2]),
    (2048, [0, 1, 3, 4]),
    (700, [5, 6]),
    (1500, [0, 1, 2]),
    (2048, [0, 1, 3, 4]),
    (513, [7, 8]),
    (1500, [0, 1, 2]),
]


def line(length, ids, time=0, **others):
    fields = {"timestamp": time, "input_length": length, "output_length": 5, "hash_ids": ids}
    return json.dumps({**fields, **others})


def write(tmp_path, text):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.fixture
def file(tmp_path):
    lines = [line(length, ids, 500 * at) for at, (length, ids) in enumerate(TRACE)]
    return write(tmp_path, "".join(f"{one}\n" for one in lines))


def run(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)], env={"COLUMNS": "80"})


def said(result):
    return " ".join((result.stdout + result.stderr).split())


def reference(file):
    """Ten lines that say what a cache without an end hits."""
    seen, hits = set(), 0
    for text in file.read_text().splitlines():
        ids = json.loads(text)["hash_ids"]
        for one in ids:
            if one not in seen:
                break
            hits += 1
        seen.update(ids)
    return hits


def replayed(file, *capacities, block_tokens=None):
    return replay_trace(
        read_trace(file, block_tokens), "trace.jsonl", NOTHING, capacities=capacities
    )


def test_a_pool_with_room_for_all_hits_what_the_reference_does(file):
    report = replayed(file, 9)
    assert reference(file) == 12
    assert (report.ceiling_hit_blocks, report.runs[0].hit_blocks) == (12, 12)
    assert report.runs[0].hit_tokens == report.ceiling_hit_tokens
    assert (report.runs[0].evictions, report.runs[0].refused_blocks) == (0, 0)


@pytest.mark.parametrize("capacity", range(1, 10))
def test_a_small_pool_never_exceeds_the_ceiling(file, capacity):
    report = replayed(file, capacity)
    one = report.runs[0]
    assert one.hit_blocks <= report.ceiling_hit_blocks
    assert one.entries_at_end <= capacity
    assert one.hit_blocks + sum(one.misses.values()) == report.blocks
    assert one.hit_share <= one.foresight_hit_share + 1e-9 <= report.ceiling_hit_share + 2e-9


def test_tokens_of_a_hit_count_what_its_last_block_really_holds(file):
    # requests 4, 5 and 7 are whole hits, request 2 finds two blocks
    assert replayed(file, 9).runs[0].hit_tokens == 1500 + 2048 + 1500 + 2 * 512


def test_a_request_that_is_larger_than_the_pool_keeps_what_has_room(tmp_path):
    file = write(tmp_path, line(2048, [0, 1, 2, 3]) + "\n" + line(1024, [0, 1]))
    found = replayed(file, 2).runs[0]
    assert (found.hit_blocks, found.refused_blocks) == (2, 2)


def test_the_least_recently_used_goes_first(tmp_path):
    ids = [[1], [2], [1], [3], [1], [2]]
    file = write(tmp_path, "\n".join(line(512, one) for one in ids))
    assert replayed(file, 2).runs[0].hit_blocks == 2


def requests(*ids):
    return [Request(at + 1, one, len(one), None) for at, one in enumerate(ids)]


def test_first_in_first_out_forgets_what_is_used():
    assert fifo_hits(requests((1,), (2,), (1,), (3,), (1,), (2,)), 2) == 1


def test_foresight_keeps_what_is_needed_next():
    trace = requests((1,), (2,), (3,), (1,), (3,), (2,))
    assert foresight_hits(trace, 2) == 2
    assert fifo_hits(trace, 2) == 1  # 3 alone
    assert endless_hits(trace, 1).blocks == 3


def test_a_longer_version_of_a_block_is_no_hit():
    trace = [Request(1, (1,), 3, None), Request(2, (1,), 5, None), Request(3, (1,), 4, None)]
    assert endless_hits(trace, 8).blocks == 1


def test_the_sweep_goes_up_to_everything():
    assert sweep(5215) == [82, 163, 326, 652, 1304, 2608, 5215]
    assert sweep(3) == [1, 2, 3]


def test_a_mooncake_trace_is_known_by_its_fields_and_counts_milliseconds(file):
    trace = read_trace(file, None)
    assert (trace.kind, trace.block_tokens) == (Kind.MOONCAKE, 512)
    assert trace.requests[1].seconds == 0.5


def test_a_bailian_trace_is_known_by_its_fields_and_counts_seconds(tmp_path):
    record = {"chat_id": 159, "parent_chat_id": 55, "type": "text", "turn": 2}
    file = write(tmp_path, line(521, list(range(33)), 61.114, **record))
    trace = read_trace(file, None)
    assert (trace.kind, trace.block_tokens) == (Kind.BAILIAN, 16)
    assert trace.requests[0].seconds == 61.114
    assert trace.requests[0].tokens(16)[-1] == 9


def test_unknown_fields_are_passed_over(tmp_path):
    file = write(tmp_path, line(20, [0], priority="high"))
    assert read_trace(file, None).kind is Kind.MOONCAKE


@pytest.mark.parametrize("extra", [{"session_id": "a"}, {"delay": 5}, {"messages": []}])
def test_lines_of_other_tools_need_their_block_size(tmp_path, extra):
    file = write(tmp_path, line(20, [0, 1], **extra))
    result = run(file)
    assert result.exit_code == 2
    assert "'--block-tokens': this kind of trace does not say" in said(result)
    assert run(file, "--block-tokens", "16").exit_code == 0


def test_the_session_form_is_refused_by_name(tmp_path):
    session = {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": []}
    result = run(write(tmp_path, json.dumps(session)))
    assert result.exit_code == 2
    assert "one session per line (requests, hash_id_scope)" in said(result)


@pytest.mark.parametrize("text", ["", "\n\r\n  \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    result = run(write(tmp_path, text))
    assert result.exit_code == 2
    assert "is empty" in said(result)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    result = run(tmp_path / "nope.jsonl")
    assert (result.exit_code, "No such file" in said(result)) == (2, True)


def test_blank_lines_and_windows_line_ends_are_fine(tmp_path):
    file = write(tmp_path, f"\ufeff{line(20, [0])}\r\n\r\n{line(20, [0])}\r\n")
    report = replayed(file, 1)
    assert (report.requests, report.runs[0].hit_blocks, report.problem_count) == (2, 1, 0)


def test_a_cut_last_line_is_left_out_and_told(tmp_path):
    result = run(write(tmp_path, line(20, [0]) + "\n" + line(20, [0])[:-12]), "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["requests"]) == (0, 1)
    assert report["notes"] == [
        "line 2, the last one, is cut off in the middle and left out: the file is not complete"
    ]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (line(20, [0, 1]), "input_length 20 is 1 blocks of 512 tokens, but hash_ids has 2"),
        (line(513, [0]), "input_length 513 is 2 blocks of 512 tokens, but hash_ids has 1"),
        ("{broken}", "no JSON, column 2"),
        ("[1]", "no JSON object"),
        (line(0, []), "input_length is 0, not a number of tokens"),
        (line(True, [0]), "input_length is True"),
        (line(20, ["a"]), "hash_ids is no list of integers"),
        (line(20, [0], "now"), "timestamp is 'now', not a number"),
        (json.dumps({"requests": []}), "a session among requests"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path, wrong, what):
    file = write(tmp_path, f"{line(20, [0])}\n\n{wrong}\n{line(20, [0])}\n")
    result = run(file)
    assert result.exit_code == 1
    assert f"1 line is wrong; nothing was replayed - line 3: {what}" in said(result)


def test_every_wrong_line_is_counted_and_the_first_are_shown(tmp_path):
    file = write(tmp_path, line(20, [0]) + "\n" + "{\n" * 20 + "\xff\n")
    report = json.loads(run(file, "--json").stdout)
    assert (report["problem_count"], len(report["problems"])) == (21, 12)
    assert report["runs"] == []


def test_the_wrong_block_size_is_found_out(file):
    result = run(file, "--block-tokens", "16")
    assert result.exit_code == 1
    assert "line 1: input_length 1500 is 94 blocks of 16 tokens, but hash_ids has 3" in said(result)


def test_an_interrupt_keeps_the_capacities_until_then(file, monkeypatch):
    usual = replay._run

    def interrupt(trace, capacity, entry, report):
        if capacity > 1:
            raise KeyboardInterrupt
        return usual(trace, capacity, entry, report)

    monkeypatch.setattr(replay, "_run", interrupt)
    result = run(file, "--capacity", "1blocks,2blocks", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ended"], len(report["runs"])) == (130, "interrupted", 1)


def test_time_that_goes_back_is_noted(tmp_path):
    file = write(tmp_path, line(20, [0], 5) + "\n" + line(20, [0], 4))
    assert "time goes back at line 2" in " ".join(read_trace(file, None).notes)


def test_bytes_are_those_of_the_model(file):
    result = run(file, "--model", "deepseek-v3", "--tp", "8", "--capacity", "1GiB", "--json")
    report = json.loads(result.stdout)
    assert report["entry"]["nbytes"] == 70272 * 512
    assert report["runs"][0]["capacity_blocks"] == (1 << 30) // (70272 * 512)
    assert report["runs"][0]["loaded_nbytes"] == 70272 * report["runs"][0]["hit_tokens"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--capacity", "1GiB"], "nothing says what a block takes"),
        (["--capacity", "many"], "is not a size"),
        (["--capacity", "1KiB", "--entry-bytes", "1MiB"], "holds no block"),
        (["--capacity", "0blocks"], "holds no block"),
        (["--capacity", "999999999999blocks"], "are not replayed"),
        (["--entry-bytes", "64", "--model", "qwen3-8b"], "not both"),
        (["--tp", "8"], "only a --model has it"),
        (["--block-tokens", "0"], "--block-tokens"),
    ],
)
def test_wrong_usage_is_told(file, arguments, why):
    result = run(file, *arguments)
    assert (result.exit_code, why in said(result)) == (2, True)


def test_nothing_is_drawn_where_nothing_is_hit(tmp_path):
    report = replayed(write(tmp_path, line(512, [1])), 1)
    _, _, chart = printed(replay_text(report)).partition("Chart")
    assert [row.split() for row in chart.splitlines()[1:3]] == [
        ["1", "blocks", "0.0%"],
        ["endless", "0.0%"],
    ]


def test_the_report_looks_like_this_at_80_columns(file):
    entry = Entry("built-in deepseek-v3", 35979264, 70272.0)
    report = replay_trace(read_trace(file, None), "trace.jsonl", entry, capacities=[2, 4, 9])
    assert printed(replay_text(report)) == golden("replay.txt")
