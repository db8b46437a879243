"""Random histories of one process that uses all of the SDK, against a plain model of it.

Two NPUs, threads, every kind of pool, a Mooncake cluster where there is one; time-outs pass, pools
fail, and copies do, upon which an NPU is lost until the next `Ems.init`. One operation of 25 is of
processes that share a pool of files, and one of a process that often uses a Mooncake cluster.
"""

import logging
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path += [str(Path(__file__).parent), str(_TESTS)]

from contracts.mooncake_cluster import WHY_NOT, cluster  # noqa: E402 - the paths must be known
from history_machine import Machine  # noqa: E402
from history_shared import shared_history  # noqa: E402

UNIT = "operations"
AMOUNT = 1_000_000
_PIECE = 25_000
_PATIENCE = 120
"""Seconds that one operation may take."""
_SHARED = 25
_MARKS = 20
_GROWTH = 8 << 20
_LEAST_FLAT = 50_000
"""Operations from which on resident memory must not grow in the second half."""


def run(amount, seed, *, with_cluster=not WHY_NOT):
    """Make so many operations, in pieces and in processes; return what was seen.

    Raises:
        AssertionError: something was not as it must be; with seed, number and the last operations.
    """
    counts, resident = Counter(), []
    shared = amount // _SHARED
    clustered = shared if with_cluster else 0
    mine = amount - shared - clustered
    log = logging.getLogger("ems")
    level = log.level
    log.setLevel(logging.CRITICAL)  # pools fail by the thousand
    try:
        for start in range(0, mine, _PIECE):
            piece, every = min(_PIECE, mine - start), amount // _MARKS or 1
            counts.update(history(piece, f"{seed}-{start // _PIECE}", resident, every))
        counts["block shared by processes"] = shared_history(shared, seed)
        if with_cluster:  # after the others: Mooncake's own memory grows in leaps
            counts.update(on_cluster(clustered, seed))
    finally:
        log.setLevel(level)
    half = resident[len(resident) // 2 :]
    if amount >= _LEAST_FLAT:
        grown = max(half) - half[0]
        assert grown <= _GROWTH, f"resident memory grew by {grown} bytes: {resident}"
    shown = ", ".join(f"{many:,} {what}" for what, many in counts.most_common())
    if WHY_NOT:
        shown += f"; without Mooncake: {WHY_NOT}"
    return f"{amount:,} operations ({shown}); resident MiB {[at >> 20 for at in resident]}"


def on_cluster(amount, seed):
    """Make a history that often uses a Mooncake cluster."""
    with cluster(lease_seconds=0.5) as trial:
        return history(amount, f"{seed}-mooncake", cluster=trial.url)


def history(amount, seed, resident=None, every=None, *, cluster=None):
    """Make one history, watched from this thread; return how often each operation was done."""
    box = []
    machine = Machine(seed, cluster)
    worker = threading.Thread(target=lambda: box.append(_go(machine, amount, resident, every)))
    worker.daemon = True
    worker.start()
    seen, since = -1, time.monotonic()
    while worker.is_alive():
        worker.join(0.2)
        if machine.steps != seen:
            seen, since = machine.steps, time.monotonic()
        elif time.monotonic() > since + _PATIENCE:
            raise AssertionError(_told(machine, seed, "does not end"))
    [failure] = box
    if failure is not None:
        raise AssertionError(_told(machine, seed, f"{type(failure).__name__}: {failure}")) from (
            failure
        )
    return machine.counts


def _go(machine, amount, resident, every):
    try:
        for number in range(amount):
            if resident is not None and number % every == 0:
                resident.append(_resident_nbytes())
            machine.step()
        machine.close()
    except BaseException as failure:  # noqa: BLE001 - the watching thread raises it
        return failure
    finally:
        machine.leave()
    return None


def _told(machine, seed, what):
    last = "\n".join(f"  {' '.join(map(str, one))}" for one in machine.told)
    return f"history({seed!r}), operation {machine.steps}: {what}\nthe last of them:\n{last}"


def _resident_nbytes():
    """Return this process's own memory; pages of pools that are files come and go."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10
