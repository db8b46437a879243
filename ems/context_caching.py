"""The object that `Ems.get_cc` returns: every call form, parsed into one request."""

import logging
import os
import threading
from dataclasses import asdict
from types import ModuleType
from typing import Any

from ems.common.boundary import guarded
from ems.common.exception import InvalidArgument, RequestTimeout
from ems.common.future import CcFuture, checked_future, ended
from ems.common.option import checked_option
from ems.common.result import CcResult
from ems.config import Settings
from ems.device.base import Direction
from ems.layout.call import parse_call
from ems.layout.key import buffer_key_prefix, parse_hashes
from ems.layout.registered import Registered, key_prefixes
from ems.layout.registration import Registration, register
from ems.pool.base import PoolEngine, PoolStats
from ems.telemetry.description import about, registration_facts
from ems.telemetry.recorder import Recorder
from ems.transfer.presence import Presence
from ems.transfer.transfers import Transfers

_log = logging.getLogger("ems")
_PLACES = ("slot_mapping", "hashes", "offsets", "option")  # of the arguments of save and load
_SWAP_SECONDS = 60.0  # that `register_kvcache` waits for requests on the cache it is to replace


class ContextCaching:
    """Saves and loads the KV blocks of one rank. Made by `Ems.init`; thread-safe.

    Only `EmsException` is raised. EMS_INVALID_ARGUMENT is raised when a call is submitted, before
    any byte moves; other failures are raised by its future.

    A call names what it moves in one of four ways; the first needs no registered cache:

    - `save(option, key_list, value_list)`: for each key, a str shorter than 128 characters, the
      list of `KvBufferWrapper` whose bytes, joined, are its value.
    - `save(slot_mapping, hashes, offsets, option)`: hash i owns the next `offsets[i]` slots.
    - `save(slot_mapping=, token_ids=, mask=, option=)`: one slot, token id and bit per token. The
      hashes are those of `ems.layout.token_hash`, one per Block_size tokens or a rest; the mask is
      0 for whole blocks in front that are left out, then 1. The result counts blocks.
    - `save(hashes=, chunk_descs=, option=)`: `chunk_descs[group][i]` is the `ChunkDesc` of hash i
      in that layer group; None where a group with a window keeps nothing of it.
    """

    def __init__(self, settings: Settings, pool: PoolEngine, ascend: ModuleType) -> None:
        self._settings = settings
        self._buffer_key_prefix = buffer_key_prefix(settings.access_id, settings.model_id)
        self._pool = pool
        self._ascend = ascend
        self._memory_map = ascend.MemoryMap()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may call `Ems.shutdown` meanwhile
        """Held while a request is submitted, and while the registered cache is exchanged."""
        self._registered: Registered | None = None
        self._tensors: Any = None
        """The registered tensors, kept so that the addresses stay the caller's."""
        self._closed = False
        self._recorder = Recorder(about(settings), self._describe)
        self._transfers = Transfers(ascend.AscendDevice, pool, self._recorder.add)
        self._presence = Presence(pool)

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
        with guarded(self._pid), self._lock:
            self._check_open()
            registration = register(
                self._ascend.read_kvcache(kvcache),
                store_layer_group_desc,
                device_id=self._settings.device_id,
            )
            for warning in registration.warnings:
                _log.warning("register_kvcache: %s", warning)
            if self.registration not in {None, registration} and not self._transfers.drain(
                _SWAP_SECONDS
            ):
                raise RequestTimeout(
                    f"register_kvcache: requests on the registered cache did not end within "
                    f"{_SWAP_SECONDS:.0f} s; it stays registered"
                )
            self._transfers.of_device(registration.device_index)
            self._registered = Registered(registration, key_prefixes(self._settings, registration))
            self._tensors = [list(layer) for layer in kvcache]
            self._recorder.touch()

    @property
    def registration(self) -> Registration | None:
        """The registered cache's layout, for diagnosis; our extension."""
        registered = self._registered
        return None if registered is None else registered.registration

    def pool_stats(self) -> PoolStats:
        """Return the pool's figures, for diagnosis; our extension."""
        with guarded(self._pid):
            return self._pool.stats()

    def counters(self) -> dict[str, dict[str, Any]]:
        """Return `Counters.snapshot`; a call counts before its end is seen. Our extension."""
        with guarded(self._pid):
            return self._recorder.counters.snapshot()

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
            kwargs: arguments of the other forms, see the class; anything else is refused.

        Our choices: a hash that is stored already counts as done and is not written again; a
        version with more tokens replaces one with fewer; blocks that find no room are left out, and
        later ones still tried; of a hash that is repeated in one call the first one is taken.

        Returns how many leading hashes are stored.

        Raises:
            EmsException: EMS_INVALID_ARGUMENT: nothing has happened. Any other: some of the blocks
                may be stored, each of them whole.
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

        The arguments are those of `save`; no slot, and no byte of a buffer, may be named twice. A
        hash that was stored with fewer tokens than asked for is a miss. A miss is no failure.

        Returns:
            How many leading hashes have been loaded, of how many. Nothing is written at or after
            the first miss. Of a full hit the caller has to compute the last token again.

        Raises:
            EmsException: unless it is EMS_INVALID_ARGUMENT, the named slots may hold anything.
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
        return self._submit(Direction.OUT, (slot_mapping, hashes, offsets, option), kwargs)

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
        return self._submit(Direction.IN, (slot_mapping, hashes, offsets, option), kwargs)

    def is_ready(self, ccfuture: Any) -> bool:
        """Return whether a call has ended, also where it has failed; does not raise its failure."""
        with guarded(self._pid):
            return checked_future(ccfuture).done()

    def get_result(self, ccfuture: Any) -> CcResult:
        """Wait for a call to end; the same as `CcFuture.result`."""
        with guarded(self._pid):
            return checked_future(ccfuture).result()

    def exists(self, hashes: Any = None, option: Any = None, **kwargs: Any) -> CcResult:
        """Return how many leading hashes are stored now, in every layer group.

        A query only: it holds nothing, so a later load may find less. A hash that was stored with
        part of a block counts. It speaks for this rank alone; others may have stored less. Where
        the pool does not answer the result is 0, as the SDK documents: the caller recomputes. The
        reason is counted, and logged when the pool stops answering.

        Raises:
            EmsException: EMS_INVALID_ARGUMENT; or this process was forked. Nothing else.
        """
        with guarded(self._pid):
            if kwargs:
                raise InvalidArgument(f"unknown arguments: {', '.join(sorted(kwargs))}")
            options = checked_option(option)
            wanted = parse_hashes(hashes)
            cache = self._cache()
            call = self._presence.look_up(cache, wanted, options)
            self._recorder.add(call)
            return CcResult(call.success, call.hashes)

    def check_health(self, *, deadline: float | None) -> None:
        """Return when pool and device work.

        Raises:
            EmsException: one does not; the text says why.
        """
        self._check_open()
        self._transfers.check_health()
        self._pool.check_health(deadline=deadline)

    def close(self, *, seconds: float) -> int:
        """End all requests within `seconds`, then the pool; return how many were given up."""
        with self._lock:
            self._closed = True
        given_up = self._transfers.close(seconds)
        self._recorder.close()
        self._pool.close()
        return given_up

    def _submit(
        self, direction: Direction, in_place: tuple[Any, ...], named: dict[str, Any]
    ) -> CcFuture:
        with guarded(self._pid), self._lock:
            self._check_open()
            call = parse_call(
                {**dict(zip(_PLACES, in_place, strict=True)), **named},
                registered=self._registered,
                buffer_key_prefix=self._buffer_key_prefix,
                writes=direction is Direction.IN,
            )
            if not call.parts:
                return CcFuture(ended(CcResult(0, 0)))
            index = (
                self._memory_map.device_of(call.buffers)
                if call.buffers is not None
                else self._cache().registration.device_index
            )
            return CcFuture(
                self._transfers.of_device(index).submit(direction, call.parts, call.option)
            )

    def _describe(self) -> dict[str, Any]:
        registration = self.registration
        return {
            "registration": None if registration is None else registration_facts(registration),
            "pool": asdict(self._pool.stats()),
        }

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(
                "Ems.shutdown has been called: call Ems.init and Ems.get_cc again"
            )

    def _cache(self) -> Registered:
        self._check_open()
        if self._registered is None:
            raise InvalidArgument("no cache is registered: call register_kvcache first")
        return self._registered


ContextCache_v1 = ContextCaching
"""The SDK's second name of the class; there is one class for both configurations."""
