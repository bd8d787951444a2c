"""`gazette backup` and `gazette restore`: the keys of etcd as one file."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.cli.commands import with_parameters
from gazette_platform.cli.gazette.serve import BROKER_OPTIONS
from gazette_platform.cli.options import parameter_of, settings_of
from gazette_platform.cli.output import note, print_text
from gazette_platform.ops import platforms
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_platform.broker.backup import Summary
    from gazette_platform.cli.options import ProcessOption
    from gazette_platform.etcd import EtcdClient

_ETCD: Final = BROKER_OPTIONS.etcd()
_CLUSTER: Final = BROKER_OPTIONS.of("etcd.prefix", str, "Path under which the cluster keeps keys.")
_STEP_KEYS: Final = 200
T = TypeVar("T")


def _backup(file: Path, prefix: list[str] | None, values: dict[str, Any]) -> None:
    """Write etcd's keys to one file: specs, savepoints, hints, and notes of brokers.

    The file is of one revision of etcd, while brokers and consumers run. Keys of processes are left out: members,
    assignments, and all others under a lease. The content of journals is not in it: the fragment stores have that.

    The command never overwrites a file. Store the file elsewhere, and test it with **gazette restore --check**.

    **Examples**

    gazette backup etcd.backup

    gazette backup /backups/etcd-$(date +%F).backup --etcd.address https://etcd-1:2379,https://etcd-2:2379

    gazette backup etcd.backup --prefix /gazette/
    """
    from gazette_platform.broker.backup import make_backup  # noqa: PLC0415  slow to import

    async def run(etcd: EtcdClient, progress: Callable[[int, int], None]) -> Summary:
        scope = prefix or ["/"]
        cluster = values["etcd.prefix"]
        return await make_backup(etcd, file, prefix=cluster, scope=scope, progress=progress)

    summary = _connected(values, "reading", run)
    print_text(f"{file}: {_described(summary)}")


def _restore(file: Path, prefix: list[str] | None, check: bool, values: dict[str, Any]) -> None:  # noqa: FBT001
    """Bring a file of **gazette backup** back into an empty etcd.

    The command first checks the whole file. It refuses if a broker runs, or if etcd has any key that the backup covers.
    It never overwrites a key. If it is interrupted, brokers do not start; run it again with the same file.

    Afterwards start all brokers with their spools. All journals refuse appends until **gazctl journals reset-head** has
    stored what spools hold, and lets them continue after that.

    **Examples**

    gazette restore etcd.backup --check

    gazette restore etcd.backup

    gazette restore etcd.backup --prefix /gazette/ --etcd.address http://localhost:2379
    """
    from gazette_platform.broker.backup import BackupFile, Restore, restore_backup  # noqa: PLC0415

    if check:
        print_text(f"{file}: {_described(BackupFile(file).verify())}")
        return

    async def run(etcd: EtcdClient, progress: Callable[[int, int], None]) -> Restore:
        return await restore_backup(etcd, BackupFile(file), scope=prefix or [], progress=progress)

    done = _connected(values, "restoring", run)
    if done.is_done_before:
        print_text(f"{file} was restored before; nothing was done")
        return
    print_text(f"restored {file}: {_described(done.summary)}")
    note(
        "Start all brokers with their spools. Then list the journals that wait, and let them go on:\n"
        "  gazctl journals reset-head --dry-run -l name:prefix=my/journals/"
    )


def _described(summary: Summary) -> str:
    header = summary.header
    kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(summary.kinds.items()))
    return (
        f"{counted(summary.keys, 'key')} of revision {header.revision}, {header.made_at}"
        f"{f' ({kinds})' if kinds else ''}; sha256 {summary.sha256}"
    )


def _connected(
    values: dict[str, Any],
    verb: str,
    work: Callable[[EtcdClient, Callable[[int, int], None]], Awaitable[T]],
) -> T:
    """Work with etcd, and show how far it is."""
    from gazette_platform.cli.bars import StepLine  # noqa: PLC0415  slow to import
    from gazette_platform.etcd import EtcdClient  # noqa: PLC0415

    if values["etcd.address"] == _ETCD[0].default() and "ETCD_ADDRESS" not in os.environ:
        found = platforms.complete(os.environ, say=note).get("ETCD_ADDRESS")
        values = values | {"etcd.address": found or values["etcd.address"]}
    config = BrokerConfig(**settings_of(_ETCD, values, BrokerConfig))

    async def run() -> T:
        line = StepLine(is_shown=sys.stderr.isatty())

        def progress(done: int, of: int) -> None:
            if not done % _STEP_KEYS:
                line.step(f"{verb} {done} of {of} keys")

        with line:
            line.step(f"connecting to etcd at {config.etcd_address}")
            async with EtcdClient(config.etcd_endpoints, tls=config.etcd_tls) as etcd:
                return await work(etcd, progress)

    return asyncio.run(run())


def _command(
    call: Callable[..., None], *own: inspect.Parameter, options: Sequence[ProcessOption]
) -> Callable[..., None]:
    """A command with its own parameters, and those that say where etcd is."""

    def command(**given: Any) -> None:
        values = {option.name: given.pop(option.parameter) for option in options}
        call(**given, values=values)

    command.__doc__ = call.__doc__
    command.__name__ = call.__name__.removeprefix("_")
    return with_parameters(command, [*own, *map(parameter_of, options)])


def _own(name: str, kind: Any, default: Any, info: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])


_FILE: Final = _own(
    "file",
    Path,
    inspect.Parameter.empty,
    typer.Argument(metavar="FILE", help="File of the backup."),
)
_PREFIX: Final = _own(
    "prefix",
    list[str] | None,
    None,
    typer.Option(
        "--prefix",
        metavar="PREFIX",
        help="Only keys that start with it, as /gazette/, if other programs use this etcd, too. Repeatable. What "
        "brokers note elsewhere is always included. Default: all keys.",
    ),
)
_CHECK: Final = _own(
    "check",
    bool,
    default=False,
    info=typer.Option("--check", help="Only check the file; etcd is not needed."),
)

backup: Final = _command(_backup, _FILE, _PREFIX, options=(*_ETCD, _CLUSTER))
restore: Final = _command(_restore, _FILE, _PREFIX, _CHECK, options=_ETCD)
