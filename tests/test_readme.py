import subprocess
import sys

import pytest
from readme_blocks import README, blocks, command_of, run, skeleton

BLOCKS = blocks()
SHELL = [block.content for block in BLOCKS if block.language == "sh"]
TERMINALS = [command_of(block) for block in BLOCKS if block.language == "console"]


def test_the_library_example_prints_what_the_readme_says(tmp_path):
    [at] = [at for at, block in enumerate(BLOCKS) if block.language == "python"]
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[at].content)
    done = subprocess.run(
        [sys.executable, "-m", "ems.simulator", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == BLOCKS[at + 1].content


@pytest.mark.parametrize(("command", "output"), TERMINALS)
def test_a_command_still_prints_what_the_readme_shows(command, output):
    wanted, cut, _ = output.partition("\n…\n")
    wanted, printed = skeleton(wanted), skeleton(run(command))
    assert wanted == (printed[: len(wanted)] if cut else printed)


def test_only_words_count_between_a_shown_output_and_a_fresh_one():
    shown = "hashes are not alike for pid 26591, 26592: they\ndiffer, 8 ms\n"
    assert skeleton(shown) == skeleton("hashes are not alike for pid 9, 11: they differ, 12.5 ms\n")
    assert skeleton(shown) != skeleton("hashes are alike for pid 26591, 26592: they differ, 8 ms\n")
    assert skeleton(shown) != skeleton("hashes are not alike for pid 26591, 26592: they differ\n")


def test_the_first_command_ends_in_a_verified_benchmark_on_the_simulated_npu():
    *_, command = SHELL[0].strip().rpartition(".venv/bin/")
    printed = run(command)
    assert "SIMULATED" in printed
    assert "Verified" in printed


def test_the_second_command_is_how_ci_runs_the_tests():
    *_, tests = SHELL[1].strip().rpartition("&& ")
    ci = (README.parent / ".ci" / "run").read_text()
    assert f"step {tests}\n" in ci
