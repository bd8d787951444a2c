"""The ``gazette`` program: run a broker, or a whole platform on one machine."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path  # noqa: TC003  the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gazette_platform.cli import errors
from gazette_platform.cli.gazctl_root import RootGroup
from gazette_platform.cli.ini import apply_ini, render_ini
from gazette_platform.cli.logs import set_up_logging
from gazette_platform.cli.option_table import option_values, with_options
from gazette_platform.cli.platform_root import (
    NewRoot,
    Root,
    existing,
    folder_of,
    new_root,
    remember,
)
from gazette_platform.cli.serve_options import SERVE_OPTIONS, broker_config, processes_of
from gazette_platform.cli.version import Version  # noqa: TC001  the parser reads annotations
from gazette_platform.errors import GazetteError, SetupError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.embedded.board import Board
    from gazette_platform.embedded.endpoints import Endpoints
    from gazette_platform.embedded.layout import PlatformDir
    from gazette_platform.embedded.platform import PlatformOptions

__all__ = ["app", "main"]

_INI = "gazette.ini"
_LOG_LINES = 20

app = typer.Typer(
    name="gazette",
    cls=RootGroup,
    help="A streaming log whose storage is the data lake itself.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="GAZETTE_STORE",
        help="Store of fragments and tables that the engines are configured for: s3://BUCKET/PREFIX/, "
        "with ?endpoint=…&region=…, and credentials as AWS tools find them; s3: a server of the "
        "platform's own. Default: folders.",
    ),
]


@app.callback(invoke_without_command=True)
def _root_command(context: typer.Context, *, _version: Version = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(1)


def _serve(values: dict[str, Any]) -> None:
    """Run a broker, or several on this machine, until SIGTERM or SIGINT.

    With **--broker.processes** above 1, a supervisor runs so many brokers: process k has the ports and
    the id of the first with k added, and --debug.port serves readiness and metrics of all.

    Options come from flags, else from gazette.ini (in ., or ~/.config/gazette), else from the
    environment.

    **Examples**

    gazette serve --etcd.address http://localhost:2379 --broker.file-root /srv/fragments

    BROKER_PORT=8080 gazette serve --broker.zone us-east-1a --log.level info

    gazette serve --broker.processes auto --broker.port 8080 --broker.http-port 9080 --debug.port 8070
    """
    set_up_logging(values["log.level"], values["log.format"])
    config, count = broker_config(values), processes_of(values)
    for folder, name in ((config.spool_dir, "spool-dir"), (config.file_root, "file-root")):
        if folder is not None:
            _check_writable(folder, f"broker.{name}")
    if count > 1:
        from gazette_platform.cli.serve_processes import serve_processes  # noqa: PLC0415

        serve_processes(
            config, count, log_level=values["log.level"], log_format=values["log.format"]
        )
        return
    from gazette_platform.broker.main import run  # noqa: PLC0415  starts no faster else

    run(config)


def _check_writable(folder: Path, option: str) -> None:
    """Raises: ValidationError: no file can be made in `folder`."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as err:
        raise ValidationError(
            f"cannot write to {folder}: {err.strerror} (choose another folder with --{option})",
            path=option,
        ) from err


def _print_config(values: dict[str, Any]) -> None:
    """Print the options of **gazette serve**, merged from all sources, as an INI file.

    **Example**

    gazette print-config --broker.zone us-east-1a > gazette.ini
    """
    broker_config({**values})
    processes_of(values)
    print(render_ini(option_values(SERVE_OPTIONS, values)), end="")


app.command("serve")(with_options(SERVE_OPTIONS, _serve))
app.command("print-config")(with_options(SERVE_OPTIONS, _print_config))


@app.command()
def up(  # noqa: PLR0917  options are named
    root: NewRoot = None,
    brokers: Annotated[int, typer.Option(help="Number of broker processes.")] = 1,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Leave out, comma-separated: metastore, trino, dagster, broker, typed.",
        ),
    ] = None,
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PORT", help="Fix a port, as trino=8080. Repeatable."),
    ] = None,
    definitions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Python file with Dagster assets of your own. Repeatable."
        ),
    ] = None,
    store: Store = "",
    metastore: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="A Hive Metastore of your own, thrift://HOST:PORT, in place of the platform's.",
        ),
    ] = "",
    trino: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="A Trino of your own, http(s)://HOST:PORT, in place of the platform's. Who asks it is "
            "told by GAZETTE_TRINO_USER and others.",
        ),
    ] = "",
    catalog: Annotated[
        str,
        typer.Option(
            metavar="URI",
            envvar="GAZETTE_ICEBERG_CATALOG",
            help="Catalog of typed tables, in place of the metastore: https://… of an Iceberg REST server, or "
            "postgresql://USER@HOST/DATABASE. Who asks it is told by GAZETTE_ICEBERG_TOKEN and others.",
        ),
    ] = "",
    *,
    light: Annotated[
        bool, typer.Option("--light", help="Start etcd and brokers alone; ready in seconds.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach/--foreground",
            help="Return when all is ready, or stay until interrupted, and stop the platform then.",
        ),
    ] = True,
) -> None:
    """Start a platform on this machine: etcd, brokers, Hive Metastore, Trino and Dagster.

    If the platform runs already, what it lacks is started beside it: nothing that runs is restarted.
    So **gazette up --light** is enough to begin with, and **gazette up** adds the rest later.

    Tools that are missing are installed first, into GAZETTE_CACHE. All ports are of 127.0.0.1, and
    the same again when the folder is used again. When all is ready, the addresses are printed and
    written to DIR/endpoints.json; logs are in DIR/logs. **gazette** and **gazctl** find the platform
    by themselves from then on.

    **Examples**

    gazette up --light

    gazette up

    gazette up --root /tmp/p --without dagster,trino --port broker-1=8080

    gazette up --root ~/platform --definitions my_assets.py

    gazette up --root ~/platform --store "s3://bucket/lake/?region=eu-central-1"

    gazette up --root ~/platform --metastore thrift://hms:9083 --trino https://trino:8443

    gazette up --root ~/platform --catalog postgresql://iceberg@db/catalogs
    """
    from gazette_platform.embedded.board import Board  # noqa: PLC0415  an extra
    from gazette_platform.embedded.platform import check_extras  # noqa: PLC0415
    from gazette_platform.embedded.supervisor import ComponentFailed  # noqa: PLC0415

    options = replace(
        _platform_options(
            brokers, without or [], port or [], definitions or [], store, light=light
        ),
        metastore=metastore,
        trino=trino,
        catalog=catalog,
    )
    check_extras(options)
    layout = new_root(root)
    try:
        with Board() as board:
            _start(layout, options, board, detach=detach)
    except ComponentFailed as error:
        _show_log(error.log)
        raise


def _start(layout: PlatformDir, options: PlatformOptions, board: Board, *, detach: bool) -> None:
    """Start a platform, or what it lacks if it runs."""
    from gazette_platform.embedded.control import (  # noqa: PLC0415
        extend,
        is_running,
        start_detached,
    )
    from gazette_platform.embedded.platform import install_tools  # noqa: PLC0415
    from gazette_platform.embedded.supervisor import Supervisor  # noqa: PLC0415

    layout.make()
    remember(layout)
    if not detach:
        Supervisor(layout, options, board).run()
        if board.endpoints is None:
            raise KeyboardInterrupt  # asked to stop before all was ready
        return
    install_tools(options)
    start = extend if is_running(layout) else start_detached
    endpoints = start(layout, options, board)
    print(next_commands(endpoints), file=sys.stderr)


def next_commands(endpoints: Endpoints) -> str:
    """What a user may do next with a platform that is ready, as lines of a shell."""
    found = {
        "gazctl journals create events/clicks": "create a journal",
        "gazctl journals append events/clicks FILE": "append a file of JSON lines or CSV",
        "gazctl sql \"FROM journal('events/clicks')\"": "query it, up to now",
        "gazctl lake create shop.clicks events/clicks": "make it a table in Trino and Spark",
        "gazctl lake list": "list the tables, and whether they are up to date",
        "gazette up": "add the Hive Metastore, Trino and Dagster beside it",
        "gazette down": "stop it; its data stays",
    }
    has_lake = bool(endpoints.broker and endpoints.metastore)
    unfit = {
        **dict.fromkeys([*found][:3], not endpoints.broker),
        **dict.fromkeys([*found][3:5], not has_lake),
        "gazette up": bool(endpoints.metastore),
    }
    shown = [command for command in found if not unfit.get(command)]
    width = max(map(len, shown)) + 2
    return "\n".join(["Next:", *(f"  {each:<{width}}# {found[each]}" for each in shown)])


def _platform_options(
    brokers: int,
    without: list[str],
    ports: list[str],
    definitions: list[Path],
    store: str,
    *,
    light: bool,
) -> PlatformOptions:
    from gazette_platform.embedded.platform import NOT_LIGHT, PlatformOptions  # noqa: PLC0415

    names = frozenset(name.strip() for text in without for name in text.split(",") if name.strip())
    names |= NOT_LIGHT if light else frozenset()
    fixed: dict[str, int] = {}
    for text in ports:
        name, _, number = text.partition("=")
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise ValidationError(
                f"expected NAME=PORT with a port from 1 to 65535, got {text!r}", path="--port"
            )
        fixed[name] = int(number)
    return PlatformOptions(
        brokers=brokers,
        without=names,
        ports=fixed,
        definitions=tuple(str(path.expanduser().absolute()) for path in definitions),
        store=store,
    )


def _show_log(log: Path) -> None:
    from gazette_platform.embedded.process import log_tail  # noqa: PLC0415

    print(f"--- the end of {log}", file=sys.stderr)
    print(log_tail(log, lines=_LOG_LINES, of_last_run=True), file=sys.stderr)
    print("---", file=sys.stderr)


@app.command()
def down(root: Root = None) -> None:
    """Stop a platform, in order. Its data stays.

    **Examples**

    gazette down

    gazette down --root ~/platform
    """
    from gazette_platform.embedded.board import Board  # noqa: PLC0415
    from gazette_platform.embedded.control import stop_platform  # noqa: PLC0415

    layout = existing(root)
    with Board() as board:
        ran = stop_platform(layout, board)
    if not ran:
        print(f"nothing runs in {layout.root}")


@app.command()
def status(
    root: Root = None,
    *,
    output: Annotated[str, typer.Option("-o", "--format", help="table or json.")] = "table",
) -> None:
    """Show the components of a platform. Exits with 1 unless all are ready.

    **Examples**

    gazette status

    gazette status --root ~/platform -o json
    """
    from gazette_platform.embedded.control import platform_state  # noqa: PLC0415

    if output not in {"table", "json"}:
        raise ValidationError(f"expected table or json, got {output!r}", path="--format")
    layout = existing(root)
    state = platform_state(layout)
    if output == "json":
        components = {
            name: {
                "state": c.state,
                "pid": c.pid,
                "ready_after_s": c.ready_after_s,
                "away_since": c.away_since,
                "why": c.why,
            }
            for name, c in state.components.items()
        }
        found = {"phase": state.phase, "failure": state.failure, "components": components}
        print(json.dumps(found, indent=2))
    else:
        late = [name for name, c in state.components.items() if c.state != "ready"]
        phase = f"not ready: {', '.join(late)}" if state.phase == "ready" and late else state.phase
        table = Table(title=f"{layout.root}: {phase}", title_justify="left")
        for column in ("component", "state", "pid", "log"):
            table.add_column(column)
        for name, component in state.components.items():
            log = str(layout.logs / f"{name}.log")
            table.add_row(name, component.state, str(component.pid or ""), log)
        Console(emoji=False).print(table)
        for line in [*state.away(), *filter(None, [state.failure])]:
            print(line)
        if not state.pid or state.phase == "dead":
            print(f"it is not running: start it with `gazette up --root {layout.root}`")
    if state.phase != "ready" or any(c.state != "ready" for c in state.components.values()):
        raise typer.Exit(1)


@app.command()
def logs(
    name: Annotated[
        str, typer.Argument(metavar="COMPONENT", help="As in gazette status; default: all.")
    ] = "",
    root: Root = None,
    *,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=1, help="Lines of each log at most.")
    ] = 20,
) -> None:
    """Show the end of the logs of a platform.

    **Examples**

    gazette logs

    gazette logs broker-1 -n 100
    """
    from gazette_platform.embedded.process import log_tail  # noqa: PLC0415

    layout = existing(root)
    files = {path.stem: path for path in sorted(layout.logs.glob("*.log"))}
    if name and name not in files:
        known = f"there are {', '.join(files)}" if files else "there are none yet"
        raise ValidationError(f"{layout.logs} has no log of {name!r}; {known}", path="COMPONENT")
    for each in [name] if name else files:
        if not name:
            print(f"--- {files[each]}")
        print(log_tail(files[each], lines=lines))


@app.command()
def env(root: Root = None) -> None:
    """Print what programs need to find a running platform, as shell assignments.

    `gazctl`, SQL and Spark's source find it without. Dagster and applications need these variables, and
    so does a shell that is to use one platform of several.

    **Example**

    eval "$(gazette env)"
    """
    from gazette_platform.embedded.endpoints import Endpoints  # noqa: PLC0415
    from gazette_platform.embedded.platform import shell_environment  # noqa: PLC0415

    layout = existing(root)
    endpoints = Endpoints.load(layout.endpoints)
    for name, value in shell_environment(layout, endpoints).items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def install() -> None:
    """Install every tool that platform, demo and tests need, into GAZETTE_CACHE.

    What is there is not fetched again, so this is quick the second time.

    **Example**

    GAZETTE_CACHE=/srv/cache gazette install
    """
    from gazette_platform.embedded import tools  # noqa: PLC0415

    tools.install_all()
    print(f"all tools are in {tools.cache_dir()}")


@app.command()
def demo(
    root: Annotated[
        Path | None,
        typer.Option(
            "--root",
            metavar="DIR",
            parser=folder_of,
            help="Folder of the platform; default: temporary.",
        ),
    ] = None,
    store: Store = "",
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the platform running.")] = False,
) -> None:
    """Publish 336,776 real flights, and query them from Trino and Spark.

    Starts a platform, appends every flight of 2013 from New York as a JSON line, follows the
    journals live, waits until sensor and rollups have done their work, and compares all counts.

    **Example**

    gazette demo --keep --root ~/demo

    gazette demo --store s3
    """
    try:
        from gazette_platform.cli import demo as content  # noqa: PLC0415  needs every extra
    except ModuleNotFoundError as err:
        raise SetupError(
            f"the demo needs {err.name}, which is not installed "
            "(install every extra: pip install 'gazette-platform[all]')"
        ) from err

    code = content.run(root=root, keep=keep, store=store)
    if code:
        raise typer.Exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns: the exit code."""
    try:
        apply_ini(_INI, {option.name: option.variable for option in SERVE_OPTIONS})
    except GazetteError as error:
        print(f"gazette: error: {error}", file=sys.stderr)
        return errors.EXIT_FAILED
    return errors.run(app, "gazette", argv)


if __name__ == "__main__":
    sys.exit(main())
