"""`gazctl journals list`, `apply` and `edit`: which journals exist, specs that change, and what keeps their journals from working.

Before the change, stores that no journal can be kept in and heads of old listings are refused. After it, warnings say what
may yet come right: too few brokers, and stores that none of them can use now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import Listing, Names, Selection, SelectorOrNames
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.gazctl.plan import Found, Wanted, some_of
from gazette_platform.cli.gazctl.specs import (
    BatchSize,
    SpecFiles,
    SpecsOption,
    carry_out,
    changes_in,
    edit_until_taken,
    listed,
)
from gazette_platform.cli.output import NONE, note, print_message, print_table, print_text
from gazette_platform.client import AsyncClient, Change, JournalListing, ListSnapshot
from gazette_platform.client.journals import apply_request, list_response
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol import (
    JournalSpec,
    LabelSelector,
    LabelSet,
    SuspendLevel,
    message_text,
    validate_apply_request,
)


def list_journals(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: Listing = "table",
    label_columns: list[str] | None = None,
    primary: bool = False,
    replicas: bool = False,
    rf: bool = False,
    stores: bool = False,
    watch: bool = False,
) -> None:
    """List journals and their specs.

    **Examples**

    gazctl journals list -l name:prefix=flights/ -p -r -L content-type

    gazctl journals list a/journal -o yaml > journal.yaml

    gazctl journals list flights/ --watch

    Options:
        -o, --format: Output format.
        -L, --label-columns: Label to show as a column; may be repeated.
        -p, --primary: Show the primary broker.
        -r, --replicas: Show the other brokers.
        --rf: Show the replication factor.
        --stores: Show the fragment stores.
        --watch: List again after each change, until interrupted.
    """
    selection = Selection.of(names, selector, is_needed=False)
    columns: list[Column] = [("Name", lambda journal: journal.name)]
    optional = ((rf, "RF", _rf), (primary, "Primary", _primary), (replicas, "Replicas", _replicas))
    columns += [(title, cell) for is_wanted, title, cell in optional if is_wanted]
    if stores:
        columns.append(("Stores", _store_urls))
    columns += [_label_column(name) for name in label_columns or ()]

    def show(snapshot: ListSnapshot) -> None:
        if output_format == "table":
            rows = [[cell(journal) for _, cell in columns] for journal in snapshot]
            print_table([title for title, _ in columns], rows)
            if not rows:
                # The table alone, as Gazette's tools have it, would not say whether that is an answer.
                note(_none_text(selection.text))
        else:
            _print_listing(snapshot, output_format)

    async def work(client: AsyncClient) -> None:
        if not watch:
            snapshot = await client.list_snapshot(selection.selector)
            if selection.names:
                selection.check(journal.name for journal in snapshot)
            show(snapshot)
            return
        async with aclosing(client.watch_snapshots(selection.selector)) as snapshots:
            async for snapshot in snapshots:
                show(snapshot)

    # An interrupt is how a watch ends.
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        connected(ctx, work)


def _none_text(selector: str) -> str:
    if not selector:
        return "there are no journals yet; `gazctl journals create NAME` makes one"
    return (
        f"no journals match {selector}; `gazctl journals list -o yaml` shows all, with their labels"
    )


Column = tuple[str, Callable[[JournalListing], str]]


def _label_column(name: str) -> Column:
    return name, lambda journal: ",".join(journal.spec.labels.values_of(name)) or NONE


def _primary(journal: JournalListing) -> str:
    route = journal.route
    name = route.members[route.primary].suffix if route.primary >= 0 else NONE
    return name if journal.spec.suspend_level is SuspendLevel.NONE else f"{name} <S>"


def _replicas(journal: JournalListing) -> str:
    members = enumerate(journal.route.members)
    return ",".join(m.suffix for index, m in members if index != journal.route.primary) or NONE


def _rf(journal: JournalListing) -> str:
    return str(journal.spec.replication)


def _store_urls(journal: JournalListing) -> str:
    return ",".join(journal.spec.fragment.stores) or NONE


def spec_tree(journals: Iterable[JournalListing]) -> str:
    """Specs as YAML, in a tree by their names."""
    from gazette_platform.yaml_specs.journal_tree import to_journal_tree  # noqa: PLC0415  slow to import

    return to_journal_tree([(each.spec, each.mod_revision) for each in journals])


def _print_listing(snapshot: ListSnapshot, output_format: Listing) -> None:
    if output_format == "yaml":
        print_text(spec_tree(snapshot), end="")
    else:
        print_message(list_response(snapshot), output_format)


# Brokers assign a new journal within a fraction of a second, and check a store that works as fast.
_ASSIGNED_S = 3.0
_CHECKED_S = 5.0
_POLL_S = 0.1

# `apply` waits no longer than this for brokers that do not know where journals end.
_HEADS_TIMEOUT_S = 5.0

# Beyond so many, one finds out from the first ones.
_TOLD_MAX = 3
_STORES_MAX = 8
_NAMES_MAX = 100


async def check_stores(client: AsyncClient, changes: Sequence[Change]) -> None:
    """Refuse changes that name a store in which no journal can ever be kept here.

    Raises: ValidationError: there is one. TransportError: no broker answered. Cancellation: safe.
    """
    refused = await client.refused_stores(_stores(changes))
    if not refused:
        return
    names = {
        store: change.spec.name
        for change in reversed(changes)
        if change.spec is not None
        for store in change.spec.fragment.stores
    }
    told = [f"{names[store]}: {reason}" for store, reason in refused.items()]
    raise ValidationError(
        f"{some_of(told)} (nothing was applied: mend the specs, or the brokers; "
        "--force applies them all the same)"
    )


async def check_heads(client: AsyncClient, changes: Sequence[Change]) -> None:
    """Refuse specs that say that a journal goes on below its head, as an old listing does.

    Heads that cannot be found out are not compared: the caller's token may allow no more than to apply.

    Raises: ValidationError: there is one. Cancellation: safe.
    """
    noted = {
        change.spec.name: change.spec.suspend.offset
        for change in changes
        if change.spec is not None and change.spec.suspend is not None
    }
    heads: dict[str, int] = {}
    with contextlib.suppress(GazetteError, TimeoutError):
        async with asyncio.timeout(_HEADS_TIMEOUT_S):
            if not any(noted.values()):
                return
            existing = await client.list_snapshot(LabelSelector())
            # The spec that is in force may say more than brokers that are away can.
            former = [each for each in existing if noted.get(each.name, 0) > 0]
            heads = {
                each.name: each.spec.suspend.offset if each.spec.suspend is not None else 0
                for each in former
            }
            asked = [each for each in former if noted[each.name] != heads[each.name]]
            heads |= await client.write_heads(asked)
    low = [
        f"{name}: suspend.offset {noted[name]} is below its head {head}"
        for name, head in heads.items()
        if noted[name] < head
    ]
    if low:
        raise ValidationError(
            f"{some_of(low)} (nothing was applied: the specs are older than the "
            "journals; take `suspend` out of them, or apply them all the same with --force)"
        )


def _stores(changes: Sequence[Change]) -> list[str]:
    """All that the changes name, each once."""
    specs = [change.spec for change in changes if change.spec is not None]
    return list(dict.fromkeys(store for spec in specs for store in spec.fragment.stores))


async def aftermath(client: AsyncClient, changes: Sequence[Change]) -> list[str]:
    """What is amiss with journals that were applied, in words; after five seconds at most.

    Brokers accept such specs, since brokers may come and stores be mended. What cannot be found out is
    not reported: the caller's token may allow no more than to apply.

    Cancellation: safe.
    """
    specs = {change.spec.name: change.spec for change in changes if change.spec is not None}
    if not specs:
        return []
    async with asyncio.TaskGroup() as group:
        lacking = group.create_task(_lacking(client, specs))
        stores = _stores(changes)[:_STORES_MAX]
        broken = [group.create_task(_broken(client, store)) for store in stores]
    return [text for task in broken if (text := task.result())] + lacking.result()


async def _lacking(client: AsyncClient, specs: Mapping[str, JournalSpec]) -> list[str]:
    """Those without enough brokers, once they had the time to be assigned."""
    labels = LabelSet()
    for name in sorted(specs)[
        :_NAMES_MAX
    ]:  # a listing of thousands, again and again, costs brokers
        labels = labels.with_added("name", name)
    selector = LabelSelector(include=labels)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ASSIGNED_S
    try:
        async with asyncio.timeout(_CHECKED_S):
            while True:
                short = _short(await client.list_snapshot(selector), specs)
                if not short or loop.time() > deadline:
                    return _told(short)
                await asyncio.sleep(_POLL_S)
    except (GazetteError, TimeoutError):
        return []  # they are applied, and `list` shows them


def _short(
    listings: Iterable[JournalListing], specs: Mapping[str, JournalSpec]
) -> list[tuple[str, int, int]]:
    """Names with the numbers of brokers that they have, and need."""
    return [
        (each.name, len(each.route.members), each.spec.desired_replication())
        for each in listings
        if each.name in specs and len(each.route.members) < each.spec.desired_replication()
    ]


def _told(short: Sequence[tuple[str, int, int]]) -> list[str]:
    told = [
        f"warning: {name} has {has} of its {wants} replicas: there are too few brokers, or none with "
        "room. Appends are refused until there are more, or its replication is less"
        for name, has, wants in short[:_TOLD_MAX]
    ]
    more = len(short) - _TOLD_MAX
    return [*told, f"warning: so it is with at least {more} more journals"] if more > 0 else told


async def _broken(client: AsyncClient, store: str) -> str:
    """Why no journal can be kept in a store, as a broker sees it; empty: it can, or no broker knows."""
    try:
        async with asyncio.timeout(_CHECKED_S):
            health = await client.store_health(store)
    except (GazetteError, TimeoutError):
        return ""
    if health.is_healthy:
        return ""
    return (
        f"warning: brokers cannot use the store {store}: {health.error}. Its journals take no appends "
        f"until that is mended (`gazctl journals store-health '{store}'`)"
    )


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
    dry_run: bool = False,
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

    Options:
        --dry-run: Check the specs, print the request they stand for, change nothing.
    """
    changes = changes_in(files, specs, _parse, lambda change: change.name)
    if dry_run:
        print_text(message_text(apply_request(changes)), end="")
        return
    _apply(ctx, changes, max_txn_size, force=force)


def _apply(ctx: typer.Context, changes: Sequence[Change], batch_size: int, *, force: bool) -> None:
    """Apply what differs, and report the outcome."""

    async def work(client: AsyncClient) -> None:
        async def send(chosen: Sequence[Wanted[JournalSpec]]) -> int:
            to_apply = _changes(chosen)
            if not force:
                await check_stores(client, to_apply)
                await check_heads(client, to_apply)
            return await client.apply(to_apply, batch_size=batch_size)

        planned = await carry_out(
            lambda found: [_wanted(change, found) for change in changes],
            group="journals",
            find=lambda: _found(client, changes),
            send=send,
            as_yaml=_spec_yaml,
            force=force,
        )
        for text in await aftermath(client, _changes(planned.changes)):
            note(text)

    connected(ctx, work)


def _changes(wanted: Sequence[Wanted[JournalSpec]]) -> list[Change]:
    return [Change(each.spec, "" if each.spec else each.name, each.revision) for each in wanted]


async def _found(client: AsyncClient, changes: Sequence[Change]) -> dict[str, Found[JournalSpec]]:
    """The journals that the changes name, as they are now; none if the caller's token may not list them."""
    names = sorted({change.name for change in changes})
    selector = LabelSelector()
    if len(names) <= _NAMES_MAX:
        labels = LabelSet()
        for name in names:
            labels = labels.with_added("name", name)
        selector = LabelSelector(include=labels)
    found = await listed(client.list_snapshot(selector))
    return {each.name: Found(each.spec, each.mod_revision) for each in found}


def _wanted(change: Change, found: Mapping[str, Found[JournalSpec]]) -> Wanted[JournalSpec]:
    """What a change asks for. It leaves the suspension of a journal alone, unless the spec sets it."""
    spec, now = change.spec, found.get(change.name)
    if spec is not None and spec.suspend is None and now is not None and not change.revision:
        spec = replace(spec, suspend=now.spec.suspend)
    return Wanted(change.name, spec, change.revision)


def _spec_yaml(spec: JournalSpec) -> str:
    from gazette_platform.yaml_specs.journal_tree import to_journal_tree  # noqa: PLC0415  slow to import

    return to_journal_tree([(spec, 0)])


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
