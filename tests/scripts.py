"""Scripts in processes of their own: for what can only be set, or broken, once per process."""

import os
import subprocess
import sys

PATIENCE = 240
"""Seconds for a whole script; importing torch alone takes some."""

REGISTERED = """
import sys, threading, time
import torch, torch_npu
import ems
from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException
from ems.simulator.control import knobs, set_fault

BS = 4

def boot(device="npu:0", layers=2, blocks=8):
    config = CcConfig_v1(rank_id=0, device_id=0, model_id="m")
    Ems.init(EmsConfig(cc_config_v1=config, pool="memory://?capacity=64MiB&segment=16MiB"))
    kv = [
        [torch.zeros(blocks, BS, 2, 8, dtype=torch.float16, device=device) for _ in range(2)]
        for _ in range(layers)
    ]
    cc = Ems.get_cc()
    cc.register_kvcache(kv)
    return cc, kv

def sl(*blocks):
    return [block * BS + at for block in blocks for at in range(BS)]

def code_of(call):
    try:
        call()
    except EmsException as error:
        return error.status_code().name
    return "no failure"
"""
"""What scripts on a registered cache begin with."""


def run_script(source, **environment):
    """Run Python source and return the finished process; its standard output is text."""
    return run_python("-c", source, environment={**os.environ, **environment})


def run_python(*arguments, environment):
    """Run Python, which must succeed, and return the finished process."""
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return finished
