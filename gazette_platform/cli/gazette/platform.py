"""Commands of `gazette` that install, start, show and stop a platform on one machine, the folder of it, and the demo."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.ops import platforms

if TYPE_CHECKING:
    from gazette_platform.platform.control import Board
    from gazette_platform.platform.layout import Endpoints, PlatformDir
    from gazette_platform.platform.platform import PlatformOptions

_LOG_LINES = 20


Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="GAZETTE_STORE",
        help="Store of fragments and tables, for which the engines are configured: s3://BUCKET/PREFIX/, with "
        "?endpoint=…&region=… and the credentials that AWS tools find; or the word s3 for a server that the "
        "platform starts. Default: folders.",
    ),
]


def up(  # noqa: PLR0917  options are named
    root: NewRoot = None,
    brokers: int = 1,
    without: list[str] | None = None,
    port: list[str] | None = None,
    definitions: list[Path] | None = None,
    store: Store = "",
    metastore: str = "",
    trino: str = "",
    catalog: Annotated[str, typer.Option(envvar="GAZETTE_ICEBERG_CATALOG")] = "",
    *,
    light: bool = False,
    kafka: bool = False,
    detach: bool = True,
) -> None:
    """Start a platform on this machine: etcd, brokers, Hive Metastore, Trino and Dagster.

    If the platform runs already, the command starts what is missing. It restarts only Dagster and the writer of typed
    tables, if their settings change. So **gazette up --light** is enough to begin with, and **gazette up** adds the rest
    later.

    The command first installs missing tools into GAZETTE_CACHE. All ports are on 127.0.0.1, and a folder keeps its ports.
    When all is ready, the command prints the addresses and writes them to DIR/endpoints.json. Logs are in DIR/logs.
    From then on **gazette** and **gazctl** find the platform by themselves.

    **Examples**

    gazette up --light

    gazette up

    gazette up --light --kafka

    gazette up --root /tmp/p --without dagster,trino --port broker-1=8080

    gazette up --root ~/platform --definitions my_assets.py

    gazette up --root ~/platform --store "s3://bucket/lake/?region=eu-central-1"

    gazette up --root ~/platform --metastore thrift://hms:9083 --trino https://trino:8443

    gazette up --root ~/platform --catalog postgresql://iceberg@db/catalogs

    Options:
        --brokers: Number of broker processes.
        --without NAMES: Components to leave out, separated by commas: metastore, trino, dagster, broker, typed.
        --port NAME=PORT: Fix a port, as trino=8080. Repeatable.
        --definitions FILE: Python file with your own Dagster assets. Repeatable.
        --metastore URI: Your own Hive Metastore, thrift://HOST:PORT, instead of the platform's.
        --trino URI: Your own Trino, http(s)://HOST:PORT, instead of the platform's. GAZETTE_TRINO_USER and others set
            the login.
        --catalog URI: Catalog of typed tables, instead of the metastore: https://… of an Iceberg REST server, or
            postgresql://USER@HOST/DATABASE. GAZETTE_ICEBERG_TOKEN and others set the login.
        --light: Start only etcd and brokers; ready in seconds.
        --kafka: Serve clients of Kafka as well, at port 9092, and their schemas at 8081, if these are free. Off by
            default: it needs the extra kafka, and takes ports that other programs try.
        --detach/--foreground: Return when all is ready; or stay until interrupted, and then stop the platform.
    """
    from gazette_platform.platform.control import Board  # noqa: PLC0415  an extra
    from gazette_platform.platform.platform import check_extras  # noqa: PLC0415
    from gazette_platform.platform.supervisor import ComponentFailed  # noqa: PLC0415

    options = replace(
        _platform_options(
            brokers, without or [], port or [], definitions or [], store, light=light
        ),
        metastore=metastore,
        trino=trino,
        catalog=catalog,
        kafka=kafka,
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
    from gazette_platform.platform.control import (  # noqa: PLC0415
        extend,
        is_running,
        start_detached,
    )
    from gazette_platform.platform.platform import install_tools  # noqa: PLC0415
    from gazette_platform.platform.supervisor import Supervisor  # noqa: PLC0415

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
        f"kcat -b {endpoints.kafka} -L": "list the topics, as a client of Kafka",
        "gazette up": "add the Hive Metastore, Trino and Dagster beside it",
        "gazette down": "stop it; its data stays",
    }
    has_lake = bool(endpoints.broker and endpoints.metastore)
    unfit = {
        **dict.fromkeys([*found][:3], not endpoints.broker),
        **dict.fromkeys([*found][3:5], not has_lake),
        f"kcat -b {endpoints.kafka} -L": not endpoints.kafka,
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
    from gazette_platform.platform.platform import NOT_LIGHT, PlatformOptions  # noqa: PLC0415

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
    from gazette_platform.platform.component import log_tail  # noqa: PLC0415

    print(f"--- the end of {log}", file=sys.stderr)
    print(log_tail(log, lines=_LOG_LINES, of_last_run=True), file=sys.stderr)
    print("---", file=sys.stderr)


def down(root: Root = None) -> None:
    """Stop a platform, in order. Its data stays.

    **Examples**

    gazette down

    gazette down --root ~/platform
    """
    from gazette_platform.platform.control import Board, stop_platform  # noqa: PLC0415

    layout = existing(root)
    with Board() as board:
        ran = stop_platform(layout, board)
    if not ran:
        print(f"nothing runs in {layout.root}")


def status(root: Root = None, *, output: str = "table") -> None:
    """Show the components of a platform. Exits with 1 unless all are ready.

    **Examples**

    gazette status

    gazette status --root ~/platform -o json

    Options:
        -o, --format: Output format: table or json.
    """
    from gazette_platform.platform.control import platform_state  # noqa: PLC0415
    from gazette_platform.platform.layout import Endpoints  # noqa: PLC0415  an extra

    if output not in {"table", "json"}:
        raise ValidationError(f"expected table or json, got {output!r}", path="--format")
    layout = existing(root)
    state = platform_state(layout)
    kafka = Endpoints.load(layout.endpoints).kafka if layout.endpoints.is_file() else ""
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
        found |= {"kafka": kafka} if kafka else {}
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
        if kafka:
            print(f"clients of Kafka: {kafka}")
        for line in [*state.away(), *filter(None, [state.failure])]:
            print(line)
        if not state.pid or state.phase == "dead":
            print(f"it is not running: start it with `gazette up --root {layout.root}`")
    if state.phase != "ready" or any(c.state != "ready" for c in state.components.values()):
        raise typer.Exit(1)


def logs(
    name: str = "", root: Root = None, *, lines: Annotated[int, typer.Option(min=1)] = 20
) -> None:
    """Show the last lines of a platform's logs.

    **Examples**

    gazette logs

    gazette logs broker-1 -n 100

    Options:
        COMPONENT: Component, as gazette status names it. Default: all.
        -n, --lines: Most lines of each log.
    """
    from gazette_platform.platform.component import log_tail  # noqa: PLC0415

    layout = existing(root)
    files = {path.stem: path for path in sorted(layout.logs.glob("*.log"))}
    if name and name not in files:
        known = f"there are {', '.join(files)}" if files else "there are none yet"
        raise ValidationError(f"{layout.logs} has no log of {name!r}; {known}", path="COMPONENT")
    for each in [name] if name else files:
        if not name:
            print(f"--- {files[each]}")
        print(log_tail(files[each], lines=lines))


def env(root: Root = None) -> None:
    """Print where a running platform is, as shell assignments.

    `gazctl`, SQL and Spark's source find the platform without them. Dagster and applications need these variables. If
    several platforms run, use them to choose one for a shell.

    **Example**

    eval "$(gazette env)"
    """
    from gazette_platform.platform.layout import Endpoints  # noqa: PLC0415
    from gazette_platform.platform.platform import shell_environment  # noqa: PLC0415

    layout = existing(root)
    endpoints = Endpoints.load(layout.endpoints)
    for name, value in shell_environment(layout, endpoints).items():
        print(f"export {name}={shlex.quote(value)}")


def install() -> None:
    """Install all tools that the platform, the demo and the tests need into GAZETTE_CACHE.

    Installed tools are not downloaded again.

    **Example**

    GAZETTE_CACHE=/srv/cache gazette install
    """
    from gazette_platform.platform import tools  # noqa: PLC0415

    tools.install_all()
    print(f"all tools are in {tools.cache_dir()}")


def demo(
    root: Annotated[Path | None, typer.Option(parser=folder_of)] = None,
    store: Store = "",
    *,
    keep: bool = False,
) -> None:
    """Publish 336,776 real flights, and query them in Trino and Spark.

    The demo starts a platform, appends each flight from New York in 2013 as a JSON line, and follows the journals live. It
    waits for the sensor and the rollups, and compares all counts.

    **Examples**

    gazette demo --keep --root ~/demo

    gazette demo --store s3

    Options:
        --root DIR: Folder of the platform. Default: a temporary one.
        --keep: Leave the platform running.
    """
    try:
        from gazette_platform.cli.gazette import demo as content  # noqa: PLC0415  needs every extra
    except ModuleNotFoundError as err:
        raise SetupError(
            f"the demo needs {err.name}, which is not installed "
            "(install every extra: pip install 'gazette-platform[all]')"
        ) from err

    code = content.run(root=root, keep=keep, remember=remember, store=store)
    if code:
        raise typer.Exit(code)


def folder_of(text: str | Path) -> Path:
    """Return the folder that an option names. Raises: typer.BadParameter: none."""
    if not str(text):
        # An unset variable of a shell: it must not make a platform of the current folder.
        raise typer.BadParameter("is empty: name a folder, or . for the current one")
    return Path(text)


NewRoot = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        parser=folder_of,
        show_default=False,
        help="Folder of the platform, created if missing. Default: ./.gazette if it exists, else "
        "~/.local/share/gazette.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        parser=folder_of,
        show_default=False,
        help="Folder of the platform. Default: the one that runs, or ran last.",
    ),
]


def new_root(given: Path | None) -> PlatformDir:
    """Return the folder that a platform is started in."""
    from gazette_platform.platform.layout import PlatformDir  # noqa: PLC0415  an extra

    layout = PlatformDir.at(given or platforms.default_root(os.environ))
    if given is None:
        platforms.say_once(f"the platform is in {platforms.short(layout.root)}")
    return layout


def existing(given: Path | None) -> PlatformDir:
    """Return the folder of a platform that was started before; without a flag, say which one it is.

    Raises: SetupError: there is none.
    """
    from gazette_platform.platform.layout import PlatformDir  # noqa: PLC0415  an extra

    if given is None:
        chosen = platforms.find(os.environ)
        if chosen.root is None:
            raise SetupError(
                "no platform was started yet (start one with `gazette up --light`, or name its folder "
                "with --root)"
            )
        platforms.say_once(chosen.note())
        given = chosen.root
    layout = PlatformDir.at(given)
    if not layout.root.is_dir():
        raise SetupError(
            f"there is no folder {layout.root} (start a platform there with "
            f"`gazette up --root {layout.root}`)"
        )
    return layout


def remember(layout: PlatformDir) -> None:
    """Let later commands find a platform by themselves."""
    try:
        platforms.remember(layout.root, os.environ)
    except OSError as error:
        print(
            f"later commands need --root {layout.root}: cannot remember it: {error}",
            file=sys.stderr,
        )
