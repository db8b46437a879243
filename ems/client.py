"""The SDK's entry: the one process-wide object, and the one place that wires the parts."""

import atexit
import logging
import os
import threading
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ems import device
from ems.common.boundary import refuse_fork
from ems.common.exception import (
    EmsException,
    InvalidArgument,
    NotReadyYet,
    PoolUnavailable,
    RequestTimeout,
)
from ems.config import Settings, doubts, read_settings
from ems.context_caching import ContextCaching
from ems.pool.base import PoolEngine
from ems.pool.registry import DEFAULT_URL, open_pool

_log = logging.getLogger("ems")
_HEALTH_SECONDS = 2.0
_SHUTDOWN_SECONDS = 30.0


@dataclass
class _State:
    """What this process has initialised."""

    initialised: bool = False
    settings: Settings | None = None
    context_caching: ContextCaching | None = None
    failure: EmsException | None = None
    """Why the newest `Ems.init` failed."""
    refused: Settings | None = None
    """Those of the newest `Ems.init`, where the pool was not up."""
    pid: int = 0


_state = _State()
_lock = threading.RLock()  # a signal's handler may call `shutdown` during any of these calls


class Ems:
    """The SDK as a process sees it. All methods are static; any thread may call them.

    Failures are `EmsException`; `status_code()` says which kind:

    - EMS_INVALID_ARGUMENT: arguments or the order of calls; mend and repeat.
    - EMS_IO_TIMEOUT: the call's time-out passed.
    - EMS_IO_ERROR: the pool does not answer; wait for `check_health`.
    - EMS_INTERNAL_ERROR: the NPU or this library failed; the NPU counts as lost in this process.
    - EMS_RECOVERD_ERROR: from `init` alone; the pool is not up yet, repeat `init` later.
    """

    @staticmethod
    def init(config: Any) -> None:
        """Connect this process to the pool.

        A second call with an equal configuration changes nothing. After a failure it starts afresh.
        A configuration without Context Caching succeeds, and `get_cc` stays None.

        Args:
            config: an `EmsConfig`.

        Raises:
            EmsException: EMS_INVALID_ARGUMENT for a wrong or different configuration;
                EMS_RECOVERD_ERROR while the pool is not up; EMS_INTERNAL_ERROR where torch_npu or
                CANN cannot be used. The process is as before the call.
        """
        _refuse_fork()
        with _lock:
            settings = read_settings(config)
            if _state.initialised:
                _refuse_other(settings)
                return
            try:
                _state.context_caching = None if settings is None else _connect(settings)
                for doubt in [] if settings is None else doubts(settings):
                    _log.warning("Ems.init: %s", doubt)
            except Exception as error:  # noqa: BLE001 - only EmsException may get out
                failure = error if isinstance(error, EmsException) else _fault(error)
                _state.failure = failure
                _state.refused = settings if isinstance(failure, NotReadyYet) else None
                raise failure from failure.__cause__
            if not _state.pid:
                atexit.register(Ems.shutdown)
            _state.settings = settings
            _state.failure = _state.refused = None
            _state.initialised = True
            _state.pid = os.getpid()

    @staticmethod
    def get_cc() -> ContextCaching | None:
        """Return the Context Caching object, the same each time.

        None before a successful `init`, after `shutdown`, or without Context Caching.
        """
        return _state.context_caching

    @staticmethod
    def check_health() -> bool:
        """Return whether requests can be expected to succeed; never raises, never hangs.

        Before `init` has succeeded: whether it may now be called with a chance of success; where
        the pool was not up, it is tried.
        """
        try:
            _refuse_fork()
            context_caching = _state.context_caching
            if context_caching is None:
                if _state.refused is not None:
                    _open_pool(_state.refused, device.load()).close()
                    return True
                return _state.failure is None or isinstance(_state.failure, InvalidArgument)
            context_caching.check_health(deadline=time.monotonic() + _HEALTH_SECONDS)
        except Exception as error:  # noqa: BLE001 - callers rely on a bool
            _log.debug("check_health: %s", error)
            return False
        return True

    @staticmethod
    def shutdown() -> None:
        """End all requests, within 30 s, and let go of the pool; our extension.

        Repeated calls are harmless; `init` may be called again. Also done at the interpreter's end.
        """
        if _forked():
            return
        with _lock:
            context_caching = _state.context_caching
            _state.context_caching = None
            _state.settings = None
            _state.initialised = False
            if context_caching is not None:
                given_up = context_caching.close(seconds=_SHUTDOWN_SECONDS)
                if given_up:
                    _log.warning("shutdown: %d requests had not ended and were given up", given_up)


def _connect(settings: Settings) -> ContextCaching:
    ascend = device.load()
    _check_device_id(settings.device_id, ascend)
    pool = _open_pool(settings, ascend)
    try:
        return ContextCaching(settings, pool, ascend)
    except BaseException:
        pool.close()
        raise


def _open_pool(settings: Settings, ascend: ModuleType) -> PoolEngine:
    try:
        pool = open_pool(settings.pool or DEFAULT_URL, ascend.PinnedMemory(settings.device_id))
        try:
            pool.check_health(deadline=time.monotonic() + _HEALTH_SECONDS)
        except BaseException:
            pool.close()
            raise
    except (PoolUnavailable, RequestTimeout) as error:
        raise NotReadyYet(f"the pool is not up: {error}") from error
    return pool


def _fault(error: Exception) -> EmsException:
    fault = EmsException(f"internal fault: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def _check_device_id(device_id: int, ascend: ModuleType) -> None:
    count = ascend.device_count()
    if device_id >= count:
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        raise InvalidArgument(
            f"device_id is {device_id}, but this process sees {count} NPUs; device_id counts the "
            f"visible ones from 0 (ASCEND_RT_VISIBLE_DEVICES is "
            f"{'not set' if visible is None else repr(visible)})"
        )


def _refuse_other(settings: Settings | None) -> None:
    if settings != _state.settings:
        raise InvalidArgument(
            "Ems.init was called before with a different configuration; call Ems.shutdown first"
        )


def _forked() -> bool:
    return _state.pid not in {0, os.getpid()}


def _refuse_fork() -> None:
    if _state.pid:
        refuse_fork(_state.pid)
