"""Registers a synthetic cache and looks at what the library makes of it."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.plane import BASE_FORMATS, FORMAT_NAMES, TensorFacts
from ems.layout.registration import Registration
from ems.layout.registration import register as register_layout
from ems.pool.registry import open_pool
from ems_cli.diagnostics.block_map import BlockMap, block_map
from ems_cli.diagnostics.block_sizes import BlockSize, block_sizes
from ems_cli.diagnostics.check import Check, Verdict, worst
from ems_cli.diagnostics.layout_checks import layout_checks
from ems_cli.diagnostics.measure import Clock, seconds_of
from ems_cli.diagnostics.npu import Runtime, versions
from ems_cli.diagnostics.readings import ShapeReading, readings_of
from ems_cli.diagnostics.session import (
    Tell,
    context_caching,
    groups_of,
    plane_names,
    rank_settings,
    synthetic_cache,
)
from ems_cli.diagnostics.shape import CacheShape, ShapeSummary, layers_text, summary_of

Groups: TypeAlias = list[StoreLayerGroupDesc] | None
_SMALL_POOL = "memory://?capacity=2MiB"
_REPEATS = 3
"""Timings of the layout alone; the median is told."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Tensors that look alike."""

    name: str
    """What the plane is: "K", "latent", …"""
    layers: str
    """Those of the model that have it, as people write them."""
    tensors: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    dtype: str
    npu_format: str
    token_nbytes: int
    block_nbytes: int
    nbytes: int
    """Of one tensor."""


@dataclass(frozen=True, slots=True)
class DeviceRegistration:
    """What came of registering a cache on one NPU."""

    device: str
    device_name: str
    memory_nbytes: int
    free_nbytes: int
    """Before the cache was allocated."""
    shape: ShapeSummary
    layouts: tuple[TensorLayout, ...]
    block_map: BlockMap | None
    """None where the cache was refused."""
    readings: tuple[ShapeReading, ...]
    """Every shape, and what else it could mean."""
    block_sizes: tuple[BlockSize, ...]
    """Empty where the cache was refused."""
    checks: tuple[Check, ...]
    refusal: str | None
    """Why the library refused the cache; None where it is registered."""
    warnings: tuple[str, ...]
    """What the library said while registering."""
    layout_seconds: float | None
    """Reading the tensors and working out the layout."""
    register_seconds: float | None
    """All of `register_kvcache`: the layout, the transfer's threads and the first use."""


@dataclass(frozen=True, slots=True)
class Zoom:
    """One block or slot that the caller wants to see."""

    block: int
    offset: int
    """Tokens into the block."""
    slot: int
    whole_block: bool
    """Whether the block was asked for, not one of its slots."""


@dataclass(frozen=True, slots=True)
class RegisterReport:
    """Everything `ems-cli register` found."""

    simulated: bool
    labels: tuple[str, ...]
    verdict: Verdict
    versions: dict[str, str]
    zoom: Zoom | None
    devices: tuple[DeviceRegistration, ...]


def register_on(
    runtime: Runtime,
    caches: Sequence[tuple[int, CacheShape]],
    *,
    zoom: Zoom | None = None,
    tell: Tell,
) -> RegisterReport:
    """Register a synthetic cache on each device, one after another.

    Raises:
        EmsException: a cache does not fit, or a device fails.
    """
    devices = tuple(_on_device(runtime, index, shape, tell) for index, shape in caches)
    return report_of(devices, simulated=runtime.simulated, zoom=zoom)


def report_of(
    devices: tuple[DeviceRegistration, ...], *, simulated: bool, zoom: Zoom | None = None
) -> RegisterReport:
    """Return the report of what was found on devices."""
    refused = any(device.refusal for device in devices)
    checked = worst(check for device in devices for check in device.checks)
    return RegisterReport(
        simulated,
        ("SIMULATED",) if simulated else (),
        Verdict.FAIL if refused else checked,
        versions(),
        zoom,
        devices,
    )


def _on_device(runtime: Runtime, index: int, shape: CacheShape, tell: Tell) -> DeviceRegistration:
    memory = runtime.synthetic.memory_of(index)
    with synthetic_cache(runtime, index, shape, tell) as cache:
        facts = runtime.ascend.read_kvcache(cache.kvcache)
        groups = groups_of(shape)
        registration, refusal = _registration(facts, groups, index)
        layout_seconds = register_seconds = None
        if registration is not None:
            layout_seconds = _layout_seconds(runtime, cache.kvcache, groups, index)
            register_seconds = _register_seconds(runtime, cache.kvcache, index, shape)
        return DeviceRegistration(
            f"npu:{index}",
            runtime.synthetic.device_name(index),
            memory.total_nbytes,
            memory.free_nbytes,
            summary_of(shape),
            tensor_layouts(facts, shape),
            None if registration is None else _map(registration, shape),
            readings_of(facts),
            () if registration is None else block_sizes(registration),
            layout_checks(facts, device=index, groups=groups),
            refusal,
            () if registration is None else registration.warnings,
            layout_seconds,
            register_seconds,
        )


def _registration(
    facts: Sequence[Sequence[TensorFacts]], groups: Groups, device: int
) -> tuple[Registration | None, str | None]:
    try:
        return register_layout(facts, groups, device_id=device), None
    except InvalidArgument as error:
        return None, str(error)


def _layout_seconds(
    runtime: Runtime,
    kvcache: Any,
    groups: Groups,
    index: int,
    clock: Clock = time.perf_counter,
) -> float:
    def layout() -> None:
        register_layout(runtime.ascend.read_kvcache(kvcache), groups, device_id=index)

    return statistics.median(seconds_of(layout, clock) for _ in range(_REPEATS))


def _register_seconds(
    runtime: Runtime, kvcache: Any, index: int, shape: CacheShape, clock: Clock = time.perf_counter
) -> float:
    pool = open_pool(_SMALL_POOL, runtime.ascend.PinnedMemory(index))
    settings = rank_settings(index, shape)
    with closing(pool), context_caching(runtime, settings, pool) as caching:
        return seconds_of(lambda: caching.register_kvcache(kvcache, groups_of(shape)), clock)


def tensor_layouts(
    kvcache: Sequence[Sequence[TensorFacts]], shape: CacheShape
) -> tuple[TensorLayout, ...]:
    """Return the tensors of a cache, those that look alike together."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for name, layer, facts in _named(kvcache, shape):
        look = (name, facts.shape, facts.strides, facts.dtype, facts.itemsize, facts.npu_format)
        alike.setdefault(look, []).append(layer)
    return tuple(_layout(look, layers) for look, layers in alike.items())


def _named(
    kvcache: Sequence[Sequence[TensorFacts]], shape: CacheShape
) -> Iterator[tuple[str, int, TensorFacts]]:
    for layer, tensors in zip(shape.layers, kvcache, strict=True):
        for plane, facts in zip(layer.planes, tensors, strict=True):
            yield plane.name, layer.index, facts


def _layout(look: tuple[Any, ...], layers: Sequence[int]) -> TensorLayout:
    name, shape, strides, dtype, itemsize, npu_format = look
    blocks, tokens, heads, size = shape
    token_nbytes = heads * size * itemsize
    return TensorLayout(
        name,
        layers_text(layers),
        len(layers),
        shape,
        strides,
        dtype,
        # torch_npu calls a plain tensor NCHW or NCDHW, by its rank
        "ND" if npu_format in BASE_FORMATS else FORMAT_NAMES.get(npu_format, str(npu_format)),
        token_nbytes,
        token_nbytes * tokens,
        token_nbytes * tokens * blocks,
    )


def _map(registration: Registration, shape: CacheShape) -> BlockMap:
    names = plane_names(shape)
    return block_map(
        (plane, names[plane.layer][plane.index])
        for planes in registration.planes
        for plane in planes
    )
