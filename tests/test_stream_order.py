"""Saves see what was queued before them, loads disturb nothing that was: in every queue mode."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "long"))

import streams_run


@pytest.mark.parametrize("mode", streams_run.MODES)
def test_no_save_is_stale_and_no_load_is_early(mode):
    streams_run.check(streams_run.races(mode, 40))
