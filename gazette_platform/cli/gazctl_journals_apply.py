"""`gazctl journals apply` and `edit`: specs that are changed."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gazette_platform.cli.aftermath import aftermath, check_heads, check_stores
from gazette_platform.cli.connection import connected, matching
from gazette_platform.cli.editing import edit_until_taken, read_specs
from gazette_platform.cli.gazctl_journals_list import spec_tree
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.client import AsyncClient, Change
from gazette_platform.client.listing import apply_request
from gazette_platform.errors import EtcdTransactionFailed, ValidationError
from gazette_platform.protocol import LabelSelector, message_text, validate_apply_request

__all__ = ["apply", "edit"]

Specs = Annotated[
    str, typer.Option("--specs", metavar="FILE", help="YAML tree of journals; - is stdin.")
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--max-txn-size", min=0, help="Changes a transaction; 0 makes one transaction of all."
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "-f",
        "--force",
        help="Also specs that name a store in which no broker can keep a journal, or a head below the "
        "journal's.",
    ),
]


def apply(
    ctx: typer.Context,
    *,
    specs: Specs = "-",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the specs, print the request, change nothing.")
    ] = False,
    max_txn_size: BatchSize = 0,
    force: Force = False,
) -> None:
    """Create, update and delete journals as a YAML tree of specs says.

    A journal's `revision` is the one it must be at: 0 or none creates it, -1 does not check.
    `delete: true` deletes it. Children of the tree stand in the order of their names.

    Nothing is applied if a store can never work with these brokers: its arguments are wrong, they have
    no driver for its scheme, or their operator does not allow it. Neither if the `suspend.offset` of a
    spec is below the journal's head: it comes from an old listing. A warning says which journals cannot
    work yet: of too few brokers, or with a store that none can use now.

    **Examples**

    gazctl journals apply --specs journal.yaml --dry-run

    gazctl journals list -o yaml | sed 's/replication: 1/replication: 2/' | gazctl journals apply
    """
    changes = _parse(read_specs(specs), specs)
    if dry_run:
        print_text(message_text(apply_request(changes)), end="")
        return
    _apply(ctx, changes, max_txn_size, force=force)


def _apply(ctx: typer.Context, changes: Sequence[Change], batch_size: int, *, force: bool) -> None:
    """Apply, and tell what came of it."""

    async def work(client: AsyncClient) -> None:
        if not force:
            await check_stores(client, changes)
            await check_heads(client, changes)
        try:
            revision = await client.apply(changes, batch_size=batch_size)
        except EtcdTransactionFailed as err:
            stale = await _stale(client, changes)
            if not stale:
                raise
            raise EtcdTransactionFailed(stale) from err
        note(_applied(changes, revision))
        for text in await aftermath(client, changes):
            note(text)

    connected(ctx, work)


async def _stale(client: AsyncClient, changes: Sequence[Change]) -> str:
    """Which of the changes are at another revision than they expect, in words; empty if none."""
    found = {each.name: each.mod_revision for each in await client.list_snapshot(LabelSelector())}
    stale = []
    for change in changes:
        name = change.delete if change.spec is None else change.spec.name
        at = found.get(name, 0)
        if change.revision not in {-1, at}:
            if at and not change.revision:
                stale.append(
                    f"{name} exists already (to change it, run `gazctl journals edit {name}`, or give its spec "
                    f"`revision: {at}`)"
                )
                continue
            is_at = f"is at revision {at}" if at else "does not exist"
            stale.append(f"{name} {is_at}, and the specs expect revision {change.revision}")
    more = f"; and {len(stale) - _STALE_MAX} more" if len(stale) > _STALE_MAX else ""
    return "; ".join(stale[:_STALE_MAX]) + more


_STALE_MAX = 3


def _parse(document: bytes, name: str) -> list[Change]:
    """Changes of a tree, checked as the broker would."""
    from gazette_platform.yaml_specs import parse_journal_tree  # noqa: PLC0415  slow to import

    at = "stdin" if name == "-" else name
    try:
        changes = parse_journal_tree(document)
        validate_apply_request(apply_request(changes))
    except ValidationError as err:
        if _is_of_table(document):
            told = "looks like a spec of a table, and not of journals: `gazctl lake apply` takes it"
            raise ValidationError(told, path=at) from err
        raise err.within(at) from err
    return changes


def _is_of_table(document: bytes) -> bool:
    """Whether a document has the keys of a table spec that no spec of journals has."""
    from gazette_platform.yaml_specs.strict_yaml import read_yaml  # noqa: PLC0415  as above

    try:
        mapping = read_yaml(document)
        return bool(mapping.text("selector") and mapping.text("format"))
    except ValidationError:
        return False


def _applied(changes: Sequence[Change], revision: int) -> str:
    deleted = sum(1 for change in changes if change.spec is None)
    return f"applied {len(changes) - deleted} and deleted {deleted} journals, revision {revision}"


def edit(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    max_txn_size: BatchSize = 0,
    force: Force = False,
) -> None:
    """Edit the specs of journals in an editor, and apply them.

    Opens $GAZ_EDITOR, $EDITOR or vi; again if the result cannot be applied. An unchanged or empty
    file cancels.

    **Example**

    EDITOR=nano gazctl journals edit flights/
    """
    selection = Selection.of(names, selector)

    def take(edited: str) -> None:
        _apply(ctx, _parse(edited.encode(), "edited specs"), max_txn_size, force=force)

    original = connected(ctx, lambda client: _tree_of(client, selection))
    edit_until_taken(original, take, group="journals")


async def _tree_of(client: AsyncClient, selection: Selection) -> str:
    return spec_tree(await matching(client, selection))
