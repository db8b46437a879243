"""The object that `Ems.get_cc` returns: every call form, parsed into one request."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ems.cc_v1.cc_config import KVCacheType
from ems.common.exception import (
    EmsException,
    InvalidArgument,
    PoolUnavailable,
    RequestTimeout,
    shown,
)
from ems.common.future import CcFuture
from ems.common.option import CcKvOption, checked_option
from ems.common.result import CcResult
from ems.config import Settings
from ems.device.base import Device, Direction
from ems.layout.key import Namespace, key_prefix, make_keys, parse_hashes
from ems.layout.part import parts_of
from ems.layout.registration import Registration, register
from ems.layout.request import Request, request_of_slots
from ems.pool.base import PoolEngine, PoolStats
from ems.transfer.saving import leading_run
from ems.transfer.transfer import Transfer

_log = logging.getLogger("ems")
_SWAP_SECONDS = 60.0
"""How long `register_kvcache` waits for requests on the cache it is to replace."""


@dataclass(frozen=True)
class _Cache:
    """A registered cache in use."""

    registration: Registration
    tensors: Any
    """Kept so that the addresses stay the caller's."""
    device: Device
    transfer: Transfer
    key_prefixes: tuple[str, ...]


class ContextCaching:
    """Saves and loads the KV blocks of one rank. Made by `Ems.init`; thread-safe.

    Only `EmsException` is raised. Whatever is refused with EMS_INVALID_ARGUMENT is refused before
    any byte moves.
    """

    def __init__(self, settings: Settings, pool: PoolEngine, ascend: ModuleType) -> None:
        self._settings = settings
        self._namespace = _namespace(settings)
        self._pool = pool
        self._ascend = ascend
        self._devices: dict[int, Device] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Held while a request is submitted, and while the registered cache is exchanged."""
        self._cache: _Cache | None = None
        self._closed = False

    def register_kvcache(self, kvcache: Any, store_layer_group_desc: Any = None) -> None:
        """Take note of the model's cache: addresses and layout; nothing is copied.

        Args:
            kvcache: layers × planes of NPU tensors, `list[list[torch.Tensor]]`; each tensor is
                `[num_blocks, block_size, heads, head_size]`. The SDK documents two planes (K and
                V); one or more, of different head sizes and dtypes, are our extension, and so is
                `[num_blocks, block_size, width]`, taken as one head. Tensors may be views with an
                offset or padding between blocks. They are kept alive until the next registration.
            store_layer_group_desc: `StoreLayerGroupDesc` for each group of layers that is stored
                under keys of its own; the groups partition the layers. None: one group.

        A second registration waits for running requests and then replaces the first; an equal one
        changes nothing.

        Raises:
            EmsException: EMS_INVALID_ARGUMENT with layer, plane and reason; EMS_IO_TIMEOUT where
                requests on the old cache do not end. The earlier registration stays in force.
        """
        with self._guarded(), self._lock:
            self._check_open()
            registration = register(
                self._ascend.read_kvcache(kvcache),
                store_layer_group_desc,
                device_id=self._settings.device_id,
            )
            for warning in registration.warnings:
                _log.warning("register_kvcache: %s", warning)
            tensors = [list(layer) for layer in kvcache]
            if self._cache is not None and self._cache.registration == registration:
                return
            fresh = self._opened(registration, tensors)
            if self._cache is not None:
                try:
                    self._retire(self._cache)
                except BaseException:
                    fresh.transfer.close(0)
                    raise
            self._cache = fresh

    @property
    def registration(self) -> Registration | None:
        """The registered cache's layout, for diagnosis; our extension."""
        cache = self._cache
        return None if cache is None else cache.registration

    def pool_stats(self) -> PoolStats:
        """Return the pool's figures, for diagnosis; our extension."""
        return self._pool.stats()

    def save(
        self,
        slot_mapping: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        option: Any = None,
        **kwargs: Any,
    ) -> CcResult:
        """Store blocks of the registered cache under their hashes, and wait for it.

        Args:
            slot_mapping: one slot (`block_id * Block_size + offset`) per token: a list, an integer
                array or a CPU tensor.
            hashes: one hash per chunk: ints of any size, or digests as bytes or str.
            offsets: tokens of each chunk; hash i owns the next `offsets[i]` slots. Usually
                Block_size; fewer for a partial block, more for several blocks.
            option: a `CcKvOption`; None for the defaults.
            kwargs: refused; the SDK's other forms are not named here.

        A hash that is stored already counts as done; a longer version replaces a shorter one.
        Blocks that find no room are left out, later ones are still tried.

        Returns:
            How many leading hashes are stored.

        Raises:
            EmsException: see `Ems`. After EMS_IO_TIMEOUT some of the blocks may be stored.
        """
        return self.async_save(slot_mapping, hashes, offsets, option, **kwargs).result()

    def load(
        self,
        slot_mapping: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        option: Any = None,
        **kwargs: Any,
    ) -> CcResult:
        """Fill blocks of the registered cache with what is stored, and wait for it.

        The arguments are those of `save`; no slot may be named twice. A hash that was stored with
        fewer tokens than asked for is a miss.

        Returns:
            How many leading hashes have been loaded. Nothing is written at or after the first miss.

        Raises:
            EmsException: see `Ems`. The named slots may then hold anything; no other is touched.
        """
        return self.async_load(slot_mapping, hashes, offsets, option, **kwargs).result()

    def async_save(
        self,
        slot_mapping: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        option: Any = None,
        **kwargs: Any,
    ) -> CcFuture:
        """Start a `save` and return at once.

        What this thread has queued on its current stream of the cache's NPU comes first. The
        blocks must not be overwritten before the future has ended.
        """
        return self._submit(Direction.OUT, slot_mapping, hashes, offsets, option, kwargs)

    def async_load(
        self,
        slot_mapping: Any = None,
        hashes: Any = None,
        offsets: Any = None,
        option: Any = None,
        **kwargs: Any,
    ) -> CcFuture:
        """Start a `load` and return at once.

        What this thread has queued on its current stream of the cache's NPU comes first. The
        blocks may be read, on any stream, once the future has ended.
        """
        return self._submit(Direction.IN, slot_mapping, hashes, offsets, option, kwargs)

    def is_ready(self, ccfuture: Any) -> bool:
        """Return whether a call has ended, also where it has failed; does not raise its failure."""
        with self._guarded():
            return _future(ccfuture).done()

    def get_result(self, ccfuture: Any) -> CcResult:
        """Wait for a call to end; the same as `CcFuture.result`."""
        with self._guarded():
            return _future(ccfuture).result()

    def exists(self, hashes: Any = None, option: Any = None, **kwargs: Any) -> CcResult:
        """Return how many leading hashes are stored now, in every layer group.

        A query only: it takes no lease, so a later load may find less. A hash that was stored with
        part of a block counts. Where the pool does not answer the result is 0, as the SDK
        documents: the caller recomputes.

        Raises:
            EmsException: EMS_INVALID_ARGUMENT only.
        """
        with self._guarded():
            _refuse_unknown(kwargs)
            checked_option(option)
            wanted = parse_hashes(hashes)
            cache = self._registered()
            try:
                found = [
                    self._pool.lookup(make_keys(prefix, wanted)) for prefix in cache.key_prefixes
                ]
            except (PoolUnavailable, RequestTimeout) as error:
                # the one failure that is reported as a miss: the SDK says so
                _log.debug("exists: %s", error)
                return CcResult(0, len(wanted))
            present = [None not in entries for entries in zip(*found, strict=True)]
            return CcResult(leading_run(present), len(wanted))

    def check_health(self, *, deadline: float | None) -> None:
        """Return when pool and device work.

        Raises:
            EmsException: one does not; the text says why.
        """
        self._check_open()
        for device in list(self._devices.values()):
            if device.lost:
                raise EmsException(f"npu:{device.index} is lost: {device.lost}")
        self._pool.check_health(deadline=deadline)

    def close(self, *, seconds: float) -> int:
        """End all requests within `seconds`, then the pool; return how many were given up."""
        with self._lock:
            self._closed = True
            cache, self._cache = self._cache, None
        given_up = 0 if cache is None else cache.transfer.close(seconds)
        self._pool.close()
        return given_up

    def _submit(  # noqa: PLR0913, PLR0917 - the SDK's arguments
        self,
        direction: Direction,
        slot_mapping: Any,
        hashes: Any,
        offsets: Any,
        option: Any,
        kwargs: dict[str, Any],
    ) -> CcFuture:
        with self._guarded(), self._lock:
            _refuse_unknown(kwargs)
            options: CcKvOption = checked_option(option)
            cache = self._registered()
            request: Request = request_of_slots(
                cache.registration, slot_mapping, hashes, offsets, writes=direction is Direction.IN
            )
            parts = parts_of(request, cache.registration.groups, cache.key_prefixes)
            return CcFuture(cache.transfer.submit(direction, parts, options))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let out nothing but EmsException, and refuse a forked child before it takes a lock."""
        if os.getpid() != self._pid:
            raise EmsException(
                "this process was forked after Ems.init: an NPU cannot be used in it; "
                'start processes with the "spawn" method and call Ems.init in each'
            )
        try:
            yield
        except EmsException:
            raise
        except Exception as error:
            raise EmsException(f"internal fault: {type(error).__name__}: {error}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(
                "Ems.shutdown has been called: call Ems.init and Ems.get_cc again"
            )

    def _registered(self) -> _Cache:
        self._check_open()
        if self._cache is None:
            raise InvalidArgument("no cache is registered: call register_kvcache first")
        return self._cache

    def _retire(self, cache: _Cache) -> None:
        if not cache.transfer.drain(_SWAP_SECONDS):
            raise RequestTimeout(
                f"register_kvcache: requests on the registered cache did not end within "
                f"{_SWAP_SECONDS:.0f} s; it stays registered"
            )
        cache.transfer.close(_SWAP_SECONDS)

    def _opened(self, registration: Registration, tensors: Any) -> _Cache:
        index = registration.device_index
        if index not in self._devices:
            self._devices[index] = self._ascend.AscendDevice(index)
        device = self._devices[index]
        prefixes = tuple(
            key_prefix(self._namespace, group.index, group.fingerprint)
            for group in registration.groups
        )
        transfer = Transfer(device, self._pool)
        return _Cache(registration, tensors, device, transfer, prefixes)


ContextCache_v1 = ContextCaching
"""The SDK's second name of the class; there is one class for both configurations."""


def _namespace(settings: Settings) -> Namespace:
    shared = settings.kvcache_type is KVCacheType.MLA
    return Namespace(
        settings.access_id,
        settings.model_id,
        settings.llm_engine,
        None if shared else settings.tp_world_size,
        None if shared else settings.rank_in_tp_group,
        settings.pp_world_size,
        settings.rank_in_pp_group,
    )


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise InvalidArgument(f"unknown arguments: {', '.join(sorted(kwargs))}")


def _future(ccfuture: Any) -> CcFuture:
    if not isinstance(ccfuture, CcFuture):
        raise InvalidArgument(f"ccfuture must be a CcFuture, not {shown(ccfuture)}")
    return ccfuture
