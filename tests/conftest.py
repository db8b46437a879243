"""Makes plain pytest work without an NPU: runs before any test module imports torch."""

import atexit
import os
import shutil
import signal
import tempfile

from hypothesis import HealthCheck, settings

from ems import simulator

# the memory of simulated devices is shared by processes: not with those of other tests
os.environ["EMS_SIM_ACCOUNT"] = f"tests-{os.getpid()}"

# what processes of tests tell of themselves is not for `ems-cli inspect` on this computer
os.environ["EMS_RUN_DIR"] = tempfile.mkdtemp(prefix="ems-tests-")
atexit.register(shutil.rmtree, os.environ["EMS_RUN_DIR"], ignore_errors=True)

simulator.ensure()

# how long examples take is no property of the code, least of all on a busy computer
settings.register_profile("ems", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ems")

# a shell that starts pytest in the background has it ignore Ctrl-C, and so its children
signal.signal(signal.SIGINT, signal.default_int_handler)
