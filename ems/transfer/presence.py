"""Answers which hashes the pool has."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from ems.common.exception import EmsException, InvalidArgument
from ems.common.option import CcKvOption
from ems.layout.prefix import servable_entries
from ems.layout.registered import Registered
from ems.pool.base import PoolEngine
from ems.telemetry.tally import CallRecord
from ems.transfer.task import failure_of

_log = logging.getLogger("ems")


class Presence:
    """Looks hashes up in a pool, for any thread."""

    def __init__(self, pool: PoolEngine) -> None:
        self._pool = pool
        self._failing = False
        """Whether the newest look-up failed: the first of several failures is worth a warning."""

    def look_up(
        self, registered: Registered, hashes: Sequence[int | bytes | str], option: CcKvOption
    ) -> CallRecord:
        """Return how many leading hashes are stored in every layer group, as the call's record.

        Where the pool does not answer that is 0, and the record says why: the SDK documents it so,
        for the caller recomputes. This is the one place where a failure is reported like a miss.
        """
        began = time.monotonic()
        failure: EmsException | None = None
        success = 0
        fates = Counter(failed=len(hashes))
        try:
            found = self._stored_tokens(registered, hashes, option)
            success = servable_entries(registered.registration.groups, found)
            fates = Counter(done=success, absent=len(hashes) - success)
        except InvalidArgument:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is 0
            failure = failure_of(error)
        self._tell(failure)
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

    def _stored_tokens(
        self, registered: Registered, hashes: Sequence[int | bytes | str], option: CcKvOption
    ) -> list[list[int]]:
        """Return the tokens that are stored, by layer group and hash."""
        deadline = option.deadline()
        view = self._pool.view(write_local=option.write_rcache, local_only=option.read_local_only)
        return [
            [0 if info is None else info.tokens for info in view.lookup(keys, deadline=deadline)]
            for keys in registered.keys(hashes)
        ]

    def _tell(self, failure: EmsException | None) -> None:
        failed_before, self._failing = self._failing, failure is not None
        if failure is not None:
            level = logging.DEBUG if failed_before else logging.WARNING
            _log.log(level, "exists answers 0 while the pool does not answer: %s", failure)
