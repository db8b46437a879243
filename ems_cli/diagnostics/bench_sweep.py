"""One benchmark at many points: block sizes, blocks per call, calls in flight, orders, pools."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ems.common.exception import EmsException
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench import BenchReport, Ended
from ems_cli.diagnostics.bench_rig import cache_of, filled_in
from ems_cli.diagnostics.bench_run import Bench, bench_on
from ems_cli.diagnostics.bench_settings import Order, Settings
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.shape_request import ShapeRequest, shapes_on


@dataclass(frozen=True, slots=True)
class Point:
    """What one point of a sweep is measured with."""

    block_size: int
    blocks_per_call: int
    """0: chosen for the cache."""
    in_flight: int
    order: Order
    pool: str | None


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point and all that was measured there."""

    point: Point
    report: BenchReport


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Everything a sweep of `ems-cli bench` measured."""

    simulated: bool
    labels: tuple[str, ...]
    """Of all points."""
    ended: Ended
    failure: str | None
    varied: tuple[str, ...]
    """Fields of `point` that differ between points."""
    points: tuple[SweepPoint, ...]

    @property
    def has_problem(self) -> bool:
        """Whether a point has one."""
        return any(one.report.has_problem for one in self.points)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What all points have in common."""

    request: ShapeRequest
    blocks: int | None
    """Blocks that are to be moved; None: as a modest cache has them."""
    indices: Sequence[int]
    settings: Settings
    together: bool = False


def points_of(
    block_sizes: Sequence[int],
    blocks_per_call: Sequence[int],
    in_flight: Sequence[int],
    orders: Sequence[Order],
    pools: Sequence[str | None],
) -> tuple[Point, ...]:
    """Return every combination, the last one varying fastest."""
    return tuple(
        itertools.starmap(
            Point, itertools.product(block_sizes, blocks_per_call, in_flight, orders, pools)
        )
    )


def prepared(wanted: Wanted, point: Point) -> tuple[Settings, list[tuple[int, CacheShape]]]:
    """Return the settings of a point, and the caches by NPU.

    Raises:
        BadInput: they contradict each other.
    """
    request = replace(wanted.request, block_size=point.block_size)
    shapes = shapes_on(request, len(wanted.indices))
    settings = replace(
        wanted.settings,
        blocks_per_call=point.blocks_per_call,
        in_flight=point.in_flight,
        order=point.order,
        pool=point.pool,
    )
    settings = filled_in(settings, shapes[0], wanted.blocks)
    caches = [cache_of(shape, settings, wanted.blocks) for shape in shapes]
    return settings, list(zip(wanted.indices, caches, strict=True))


def bench_at(bench: Bench, wanted: Wanted, point: Point) -> BenchReport:
    """Measure one point.

    Raises:
        BadInput: the settings do not fit the cache or the pool.
        EmsException: nothing could be measured.
        KeyboardInterrupt: before anything was measured.
    """
    settings, caches = prepared(wanted, point)
    return bench_on(bench, caches, settings, together=wanted.together)


def sweep_on(
    bench: Bench,
    wanted: Wanted,
    points: Sequence[Point],
    *,
    done: Callable[[BenchReport], BenchReport] = lambda report: report,
) -> SweepReport:
    """Measure each point in turn; `done` is given each report. An interrupt or failure ends it.

    Raises:
        BadInput: a point's settings do not fit, or the first pool cannot be opened.
        EmsException: nothing could be measured.
        KeyboardInterrupt: before anything was measured.
    """
    for point in points:
        prepared(wanted, point)  # refuses before the first minute is spent
    found: list[SweepPoint] = []
    ended: Ended = "complete"
    failure: BaseException | None = None
    for at, point in enumerate(points):
        bench.tell(f"point {at + 1} of {len(points)}: {', '.join(_told(point, points))}")
        try:
            report = bench_at(bench, wanted, point)
        except KeyboardInterrupt as error:
            ended, failure = "interrupted", error
        except (EmsException, BadInput) as error:  # the points before it are worth their time
            ended, failure = "failed", error
        else:
            found.append(SweepPoint(point, done(report)))
            ended = report.ended
        if ended != "complete":
            break
    if failure is not None and not found:
        raise failure
    told = None if failure is None or ended == "interrupted" else str(failure)
    return sweep_of(found, ended=ended, failure=told, varied=varied_in(points))


def sweep_of(
    points: Sequence[SweepPoint], *, ended: Ended, failure: str | None, varied: Sequence[str]
) -> SweepReport:
    """Return the report of at least one point."""
    labels = dict.fromkeys(label for one in points for label in one.report.labels)
    failed = failure or next((p.report.failure for p in points if p.report.failure), None)
    return SweepReport(
        any(one.report.simulated for one in points),
        tuple(labels),
        ended,
        failed,
        tuple(varied),
        tuple(points),
    )


def varied_in(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the fields that differ between points."""
    return tuple(name for name in _FIELDS if len({getattr(point, name) for point in points}) > 1)


_FIELDS = ("block_size", "blocks_per_call", "in_flight", "order", "pool")


def _told(point: Point, points: Sequence[Point]) -> Iterator[str]:
    for name in varied_in(points):
        yield f"{name.replace('_', ' ')} {getattr(point, name)}"
