"""Makes plain pytest work without an NPU: runs before any test module imports torch."""

import os

from ems import simulator

# the memory of simulated devices is shared by processes: not with those of other tests
os.environ["EMS_SIM_ACCOUNT"] = f"tests-{os.getpid()}"

simulator.ensure()
