"""`gazctl shards`: its commands and their options; what they do is in `gazctl_shards_*`, slow to import."""

import enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from gazette_platform.cli.connection import FileRoot
from gazette_platform.cli.editing import SpecFiles, SpecsOption
from gazette_platform.cli.shards_connection import Ids, ShardSelection, ShardSelector

__all__ = [
    "ShardsFormat",
    "apply",
    "edit",
    "list_shards",
    "prune",
    "recover",
    "unassign",
]


class ShardsFormat(enum.StrEnum):
    """Formats of a listing."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"
    PROTO = "proto"


BatchSize = Annotated[
    int,
    typer.Option(
        "--max-txn-size", min=0, help="Changes a transaction; 0 makes one transaction of all."
    ),
]


def list_shards(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    output_format: Annotated[
        ShardsFormat, typer.Option("-o", "--format", help="Output format.")
    ] = ShardsFormat.TABLE,
    label_columns: Annotated[
        list[str] | None,
        typer.Option("-L", "--label-columns", help="Label to show as a column; may be repeated."),
    ] = None,
    primary: Annotated[
        bool, typer.Option("-p", "--primary", help="Show the primary process.")
    ] = False,
    replicas: Annotated[
        bool, typer.Option("-r", "--replicas", help="Show the hot standbys.")
    ] = False,
    rf: Annotated[bool, typer.Option("--rf", help="Show how many replicas are wanted.")] = False,
    lag: Annotated[
        bool,
        typer.Option("--lag", help="Show how many bytes of each source are still to be read."),
    ] = False,
) -> None:
    """List shards, how their replicas stand, and their specs.

    The status is that of all replicas of a shard: FAILED if one of them has failed; then its error is shown
    on stderr.

    **Examples**

    gazctl shards list -l team=search -p -r --lag

    gazctl shards list shard-000 -o yaml > shard.yaml
    """
    selection = ShardSelection.of(ids, selector, is_needed=False)
    columns = {"rf": rf, "primary": primary, "replicas": replicas, "lag": lag}
    _body("list").list_shards(ctx, selection, output_format.value, label_columns or [], columns)


def apply(
    ctx: typer.Context,
    files: SpecFiles = None,
    *,
    specs: SpecsOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the specs, print the request they stand for, change nothing."
        ),
    ] = False,
    max_txn_size: BatchSize = 0,
    force: Annotated[
        bool,
        typer.Option(
            "-f", "--force", help="Change shards whose specs differ and give no revision."
        ),
    ] = False,
) -> None:
    """Make shards as YAML specs say.

    Shards that do not exist are created. One whose spec is equal is left `unchanged`. If a spec differs and gives no
    `revision`, nothing is applied: the command shows the difference and fails; --force changes the shard.

    A `revision` makes a spec a compare-and-set: the shard must be at it, and -1 stands for any. `delete: true`,
    which needs a revision, deletes the shard. Shards are in the order of their IDs; `common` holds what they share.

    Nothing is applied if a source or a recovery log is not a journal of the brokers, or has another
    content type.

    **Examples**

    gazctl shards apply shards.yaml

    gazctl shards list -o yaml | sed 's/hot_standbys: 1/hot_standbys: 2/' | gazctl shards apply
    """
    _body("apply").apply(ctx, files, specs, max_txn_size, dry_run=dry_run, force=force)


def edit(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    max_txn_size: BatchSize = 0,
) -> None:
    """Edit the specs of shards in an editor, and apply them.

    Opens $GAZ_EDITOR, $EDITOR or vi; again if the result cannot be applied. An unchanged or empty
    file cancels.

    **Example**

    EDITOR=nano gazctl shards edit -l team=search
    """
    _body("apply").edit(ctx, ShardSelection.of(ids, selector), max_txn_size)


def prune(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    file_root: FileRoot = None,
) -> None:
    """Remove fragments of recovery logs that no hints of any selected shard need.

    Of shards that share history in their logs, all have to be selected: what only others need is
    removed else. What is removed is gone.

    Left alone: logs of shards with missing hints, or hints without files; logs that are suspended,
    and those with a store that is not healthy.

    Other logs go on when one fails; then the exit status is 1. Run it again to do the rest.

    **Example**

    gazctl shards prune -l team=search --dry-run
    """
    _body("prune").prune(ctx, ShardSelection.of(ids, selector), file_root, dry_run=dry_run)


def recover(
    ctx: typer.Context,
    shard: Annotated[
        str | None, typer.Argument(metavar="ID", show_default=False, help="The shard.")
    ] = None,
    *,
    shard_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", show_default=False, help="The shard, as Gazette's tools take it."
        ),
    ] = None,
    directory: Annotated[
        Path,
        typer.Option("-d", "--dir", help="For its files: a directory that is empty, or not there."),
    ],
) -> None:
    """Play the recovery log of a shard to its end, into a directory.

    The files are those of the shard's store as it was last recorded. The shard goes on undisturbed.

    **Example**

    gazctl shards recover shard-000 --dir shard-000.files
    """
    if (shard is None) == (shard_id is None):
        raise typer.BadParameter("give the ID of one shard, as an argument or by --id")
    _body("recover").recover(ctx, shard or shard_id, directory)


def unassign(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only replicas that have failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be unassigned, and change nothing.")
    ] = False,
) -> None:
    """Take shards from their primaries, and from replicas that have failed, to assign them again.

    So a shard that failed is tried again. Hot standbys stay.

    **Examples**

    gazctl shards unassign -l team=search --failed

    gazctl shards unassign shard-000
    """
    selection = ShardSelection.of(ids, selector)
    _body("unassign").unassign(ctx, selection, failed=failed, dry_run=dry_run)


def _body(name: str) -> Any:
    return import_module(f"gazette_platform.cli.gazctl_shards_{name}")
