"""`ems-cli pool` and its sub-commands."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ems_cli.commands.option_groups import with_groups
from ems_cli.commands.options import EXIT_CODES, LONGEST_SECONDS, OutputOptions, nbytes_of, sink_for
from ems_cli.diagnostics.bad_input import BadInput

if TYPE_CHECKING:  # what costs time to import comes when it is needed
    from ems_cli.diagnostics.pool_address import PoolAddress

_LAST_PORT: Final = (1 << 16) - 1

pool = typer.Typer(
    name="pool",
    help="Start a pool for trials; show, list and empty a shared one.",
    no_args_is_help=True,
    epilog=EXIT_CODES,
)
"""Sub-commands; `ems_cli.app` adds them as one command."""

_URL = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="The pool.  [default: EMS_POOL]", show_default=False),
]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The cluster."""

    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=_LAST_PORT, metavar="N", help="The master's port.  [default: a free one]"
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_LAST_PORT,
            metavar="N",
            help="The port of the master's figures and keys.  [default: a free one]",
        ),
    ] = None
    capacity: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of this host that it lends.")
    ] = "4GiB"
    lease: Annotated[
        int,
        typer.Option(
            min=1,
            max=LONGEST_SECONDS * 1000,
            metavar="MS",
            help="How long what was read is not evicted.",
        ),
    ] = 2000


def _serve(context: typer.Context, how: ServeOptions, output: OutputOptions) -> None:
    """Run Mooncake on this host until Ctrl-C, to try it out.

    A master and a node that lends memory, on loopback. Ctrl-C or SIGTERM is the normal end and
    leaves no process; what the pool held is gone then.
    """
    sink = sink_for(context, output)
    from ems_cli.diagnostics.pool_serve import ServeRequest, serving  # noqa: PLC0415
    from ems_cli.render.pool import serve_text  # noqa: PLC0415 - rich

    request = ServeRequest(
        port=how.port,
        metrics_port=how.metrics_port,
        capacity_nbytes=nbytes_of(how.capacity, option="--capacity"),
        lease_seconds=how.lease / 1000,
    )
    with serving(request) as cluster:
        if cluster is not None:
            sink.emit(cluster.report, serve_text)
            cluster.wait()
    sink.note("Mooncake has ended")


def _stats(context: typer.Context, output: OutputOptions, *, url: _URL = None) -> None:
    """Show a shared pool's memory, and whose entries are in it."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.pool_contents import stats_report  # noqa: PLC0415 - numpy
    from ems_cli.render.pool import stats_text  # noqa: PLC0415 - rich

    sink.emit(stats_report(_address(url), _run_dir()), stats_text)


def _keys(
    context: typer.Context,
    output: OutputOptions,
    *,
    url: _URL = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Only entries of this namespace; 8 digits of it will do."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show so many keys.")] = 100,
) -> None:
    """List keys with their tokens and bytes."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.pool_contents import keys_report  # noqa: PLC0415 - numpy
    from ems_cli.render.pool import keys_text  # noqa: PLC0415 - rich

    with sink.progress("looking up", total=limit) as advance:
        report = keys_report(_address(url), namespace=namespace, limit=limit, advance=advance)
    sink.emit(report, keys_text)
    if report.matching > len(report.keys):
        sink.note(f"these are {len(report.keys)} of {report.matching}; --limit N shows more")


def _clear(
    context: typer.Context,
    output: OutputOptions,
    *,
    url: _URL = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this, only say how much would go.")
    ] = False,
) -> None:
    """Remove every entry of a shared pool."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.pool_changes import clear_pool  # noqa: PLC0415 - numpy
    from ems_cli.render.pool import removal_text  # noqa: PLC0415 - rich

    sink.emit(clear_pool(_address(url), _run_dir(), certain=yes), removal_text)


def _remove(
    context: typer.Context,
    output: OutputOptions,
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL|KEY",
            help="The pool, and keys as `pool keys` lists them.  [default: EMS_POOL]",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Every entry of this namespace; 8 digits of it will do."
        ),
    ] = None,
) -> None:
    """Remove entries by their keys, or those of a namespace.

    The exit code is 1 if a key that is named is not there.
    """
    sink = sink_for(context, output)
    from ems_cli.diagnostics.pool_changes import remove_keys, remove_namespace  # noqa: PLC0415
    from ems_cli.render.pool import removal_text  # noqa: PLC0415 - rich

    given = names or []
    has_url = bool(given) and "://" in given[0]  # no key has these characters
    keys = given[1:] if has_url else given
    if bool(keys) == (namespace is not None):
        raise BadInput("give keys or --namespace, one of them", option="KEY")
    address = _address(given[0] if has_url else None)
    if namespace is not None:
        report = remove_namespace(address, _run_dir(), namespace)
    else:
        report = remove_keys(address, _run_dir(), keys)
    sink.emit(report, removal_text)
    if report.missing:
        raise typer.Exit(1)


def _address(url: str | None) -> "PoolAddress":
    from ems_cli.diagnostics.pool_address import pool_address  # noqa: PLC0415 - numpy

    return pool_address(url, os.environ)


def _run_dir() -> Path:
    from ems.telemetry.run_dir import default_run_dir  # noqa: PLC0415 - --help needs none of it

    return default_run_dir()


for _command in (_serve, _stats, _keys, _clear, _remove):
    _name = _command.__name__.removeprefix("_")
    pool.command(_name, epilog=EXIT_CODES)(with_groups(_command))
