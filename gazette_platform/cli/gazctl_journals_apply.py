"""`gazctl journals apply` and `edit`: specs that are changed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from gazette_platform.cli.aftermath import aftermath, check_heads, check_stores
from gazette_platform.cli.connection import connected, matching
from gazette_platform.cli.declaring import (
    Found,
    Plan,
    Wanted,
    differences,
    plan,
    report,
    stale,
)
from gazette_platform.cli.editing import (
    SpecFiles,
    SpecsOption,
    edit_until_taken,
    read_specs,
    require_distinct,
)
from gazette_platform.cli.gazctl_journals_list import spec_tree
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.client import AsyncClient, Change
from gazette_platform.client.journals import apply_request
from gazette_platform.errors import CallFailed, EtcdTransactionFailed, ValidationError
from gazette_platform.protocol import (
    JournalSpec,
    LabelSelector,
    LabelSet,
    message_text,
    validate_apply_request,
)

__all__ = ["apply", "edit"]

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
        help="Change journals whose specs differ and give no revision. Also apply specs that name a store in which "
        "no broker can keep a journal, or a head below the journal's.",
    ),
]


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
    force: Force = False,
) -> None:
    """Make journals as YAML trees of specs say.

    Journals that do not exist are created. One whose spec is equal is left `unchanged`. If a spec differs and gives no
    `revision`, nothing is applied: the command shows the difference and fails; --force changes the journal.

    A `revision` makes a spec a compare-and-set: the journal must be at it, and -1 stands for any. `delete: true`,
    which needs a revision, deletes the journal. Children of a tree are in the order of their names.

    Nothing is applied if a store can never work with these brokers: its arguments are wrong, they have
    no driver for its scheme, or their operator does not allow it. The same holds if the `suspend.offset` of a
    spec is below the journal's head: such a spec comes from an old listing. A warning says which journals cannot
    work yet, because there are too few brokers or none can use the store now.

    **Examples**

    gazctl journals apply events.yaml orders.yaml

    gazctl journals apply events.yaml --force

    gazctl journals list -o yaml | sed 's/replication: 1/replication: 2/' | gazctl journals apply
    """
    parsed = {name: _parse(document, name) for name, document in read_specs(files, specs)}
    require_distinct({name: (one.name for one in changes) for name, changes in parsed.items()})
    changes = [one for some in parsed.values() for one in some]
    if dry_run:
        print_text(message_text(apply_request(changes)), end="")
        return
    _apply(ctx, changes, max_txn_size, force=force)


def _apply(ctx: typer.Context, changes: Sequence[Change], batch_size: int, *, force: bool) -> None:
    """Apply what differs, and report the outcome."""

    async def work(client: AsyncClient) -> None:
        found = await _found(client, changes)
        wanted = [_wanted(change, found) for change in changes]
        planned = plan(wanted, found, force=force)
        if planned.differing:
            lines, error = differences(
                planned.differing, found, group="journals", as_yaml=_spec_yaml
            )
            for line in lines:
                note(line)
            raise error
        await _send(client, planned, batch_size, force=force)

    connected(ctx, work)


async def _send(
    client: AsyncClient, planned: Plan[JournalSpec], batch_size: int, *, force: bool
) -> None:
    changes = [
        Change(each.spec, "" if each.spec else each.name, each.revision) for each in planned.changes
    ]
    revision = 0
    if changes:
        if not force:
            await check_stores(client, changes)
            await check_heads(client, changes)
        try:
            revision = await client.apply(changes, batch_size=batch_size)
        except EtcdTransactionFailed as err:
            text = stale(planned.changes, await _found(client, changes), group="journals")
            if not text:
                raise
            raise EtcdTransactionFailed(text) from err
    for line in report(planned.outcomes, revision):
        note(line)
    for text in await aftermath(client, changes):
        note(text)


async def _found(client: AsyncClient, changes: Sequence[Change]) -> dict[str, Found[JournalSpec]]:
    """The journals that the changes name, as they are now; none if the caller's token may not list them."""
    names = sorted({change.name for change in changes})
    selector = LabelSelector()
    if len(names) <= _NAMES_MAX:
        labels = LabelSet()
        for name in names:
            labels = labels.with_added("name", name)
        selector = LabelSelector(include=labels)
    try:
        listed = await client.list_snapshot(selector)
    except CallFailed as err:
        if err.code != "UNAUTHENTICATED":
            raise
        return {}
    return {each.name: Found(each.spec, each.mod_revision) for each in listed}


def _wanted(change: Change, found: Mapping[str, Found[JournalSpec]]) -> Wanted[JournalSpec]:
    """What a change asks for. Whether a journal is suspended is no one's wish, unless the spec says so."""
    spec, now = change.spec, found.get(change.name)
    if spec is not None and spec.suspend is None and now is not None and not change.revision:
        spec = replace(spec, suspend=now.spec.suspend)
    return Wanted(change.name, spec, change.revision)


def _spec_yaml(spec: JournalSpec) -> str:
    from gazette_platform.yaml_specs.journal_tree import to_journal_tree  # noqa: PLC0415  slow to import

    return to_journal_tree([(spec, 0)])


# Beyond so many names, all journals are listed: a long selector costs brokers more.
_NAMES_MAX = 100


def _parse(document: bytes, name: str) -> list[Change]:
    """Changes of a tree, checked as the broker would."""
    from gazette_platform.yaml_specs.journal_tree import parse_journal_tree  # noqa: PLC0415  slow to import

    try:
        changes = parse_journal_tree(document)
        validate_apply_request(apply_request(changes))
    except ValidationError as err:
        if _is_of_table(document):
            told = "looks like a spec of a table, and not of journals: `gazctl lake apply` takes it"
            raise ValidationError(told, path=name) from err
        raise err.within(name) from err
    return changes


def _is_of_table(document: bytes) -> bool:
    """Whether a document has the keys of a table spec that no spec of journals has."""
    from gazette_platform.yaml_specs.documents import read_yaml  # noqa: PLC0415  as above

    try:
        mapping = read_yaml(document)
        return bool(mapping.text("selector") and mapping.text("format"))
    except ValidationError:
        return False


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
