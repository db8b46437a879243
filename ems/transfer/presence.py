"""Answers which hashes the pool has."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.common.option import CcKvOption
from ems.layout.prefix import servable_entries
from ems.layout.registered import Registered
from ems.pool.base import PoolEngine
from ems.telemetry.tally import CallRecord

_log = logging.getLogger("ems")


def look_up(
    pool: PoolEngine,
    registered: Registered,
    hashes: Sequence[int | bytes | str],
    option: CcKvOption,
) -> CallRecord:
    """Return how many leading hashes are stored in every layer group, as the record of the call.

    Where the pool does not answer that is 0, and the record says why: the SDK documents it so, for
    the caller recomputes. This is the one place where a failure is reported like a miss.
    """
    began = time.monotonic()
    deadline = option.deadline()
    failure: PoolUnavailable | RequestTimeout | None = None
    success = 0
    fates = Counter(failed=len(hashes))
    try:
        view = pool.view(write_local=option.write_rcache, local_only=option.read_local_only)
        found = [view.lookup(keys, deadline=deadline) for keys in registered.keys(hashes)]
    except (PoolUnavailable, RequestTimeout) as error:
        _log.debug("exists: %s", error)
        failure = error
    else:
        tokens = [[0 if info is None else info.tokens for info in infos] for infos in found]
        success = servable_entries(registered.registration.groups, tokens)
        fates = Counter(done=success, absent=len(hashes) - success)
    return CallRecord(
        operation="exists",
        hashes=len(hashes),
        success=success,
        fates=fates,
        nbytes=0,
        phases={},
        seconds=time.monotonic() - began,
        code=None if failure is None else failure.status_code(),
    )
