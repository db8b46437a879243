"""What `verify` shows of a report made by hand, and what every command's help says of its ends."""

import pytest
from cli_text import golden, printed
from typer.testing import CliRunner

from ems_cli.app import app
from ems_cli.commands.outputs import OUTPUTS
from ems_cli.diagnostics.check import Verdict
from ems_cli.diagnostics.shape import summary_of
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.verify import RankReport, StepReport, VerifyReport, VerifySettings
from ems_cli.diagnostics.verify_faults import Fault, FaultKind
from ems_cli.render.verify import verify_text

SHAPE = shape_of(ShapeRequest(layers=8, heads=2, head_size=16, block_size=8, blocks=16))
WRONG = Fault(
    FaultKind.PLANES_SWAPPED,
    "layer 7 K block 12 token 3 head 0 dim 0 holds layer 7 V block 12 token 3 head 0 dim 0",
    regions=4,
)
REPORT = VerifyReport(
    simulated=True,
    labels=("SIMULATED",),
    ended="complete",
    verdict=Verdict.FAIL,
    settings=VerifySettings(rounds=1, seed=7, pool=None, processes=1, faults=False),
    versions={"ems": "0.1.0"},
    ranks=(RankReport("rank 0", "npu:0", "Ascend910B2", summary_of(SHAPE)),),
    steps=(
        StepReport("whole blocks", 1, "npu:0", Verdict.PASS, 2048, 4096, 0.0125, None),
        StepReport("unordered slots", 1, "npu:0", Verdict.FAIL, 512, 1024, 0.25, WRONG),
    ),
    passed_steps=1,
    failed_steps=1,
    compared_elements=2560,
    compared_nbytes=5120,
    notes=("processes were not asked for",),
)


def test_a_verification_that_failed_names_the_fault_and_its_kind_on_80_columns():
    assert printed(verify_text(REPORT)) == golden("verify.txt")


@pytest.mark.parametrize("command", OUTPUTS)
def test_the_help_of_a_command_names_its_exit_codes(command):
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0
    for code, meaning in (("0", "fine"), ("1", "problem"), ("2", "usage"), ("3", "unreachable")):
        assert any(
            line.split()[:1] == [code] and meaning in line for line in done.stdout.splitlines()
        ), (code, done.stdout)
