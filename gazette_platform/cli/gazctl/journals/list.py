"""`gazctl journals list` and `fragments`: which journals exist, and which fragments hold their content."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, nullcontext, suppress
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from gazette_platform.cli.gazctl.arguments import (
    Listing,
    Names,
    Selection,
    SelectorOrNames,
    instant_option,
    seconds_of,
)
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.output import (
    NONE,
    note,
    print_json,
    print_message,
    print_table,
    print_text,
)
from gazette_platform.client import (
    AsyncClient,
    FragmentListing,
    FragmentPage,
    JournalListing,
    ListSnapshot,
)
from gazette_platform.client.journals import list_response
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    SuspendLevel,
    fragment_json,
    fragments_text,
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
        columns.append(("Stores", _stores))
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


def _stores(journal: JournalListing) -> str:
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


_SUM_BYTES_SHOWN = 6


FragmentsFormat = Literal["table", "json", "proto"]
"""Formats of a listing of fragments."""


def fragments(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: FragmentsFormat = "table",
    begin_mod_time: Annotated[int, typer.Option(parser=instant_option)] = 0,
    end_mod_time: Annotated[int, typer.Option(parser=instant_option)] = 0,
    url_ttl: str = "0s",
) -> None:
    """List the fragments of journals: those in their stores, and those still in brokers.

    **Examples**

    gazctl journals fragments a/journal --from @-1h

    gazctl journals fragments -l name:prefix=a/ -o json --url-ttl 10m

    Options:
        -o, --format: Output format.
        --from TIME: Persisted since: Unix seconds, @-1h for an hour ago, or an ISO 8601 time.
        --to TIME: Persisted until: Unix seconds, @-1h for an hour ago, or an ISO 8601 time. 0: no bound.
        --url-ttl DURATION: Show signed URLs, good for so long, as 5m.
    """
    selection = Selection.of(names, selector, is_needed=False)
    ttl_s = seconds_of(url_ttl, "--url-ttl")

    if end_mod_time and end_mod_time <= begin_mod_time:
        raise ValidationError(
            f"ends at {_instant(end_mod_time)}, not after --from ({_instant(begin_mod_time)})",
            path="--to",
        )

    async def work(client: AsyncClient) -> None:
        found = _pages(client, selection, begin_mod_time, end_mod_time, ttl_s)
        if output_format == "table":
            columns = ["Journal", "Offset", "Length", "Persisted", "SHA1", "Compression"]
            if ttl_s:
                columns.append("URL")
            rows = [
                _row(each)[: len(columns)] async for _, page in found for each in page.fragments
            ]
            print_table(columns, rows)
            return
        async for is_first, page in found:
            if output_format == "json":
                for each in page.fragments:
                    print_json(fragment_json(each.fragment, each.signed_url))
            else:
                listed = [(each.fragment, each.signed_url) for each in page.fragments]
                header = page.header if is_first else None
                print_text(fragments_text(listed, header=header), end="")

    connected(ctx, work)


def _row(listing: FragmentListing) -> list[str]:
    fragment = listing.fragment
    return [
        fragment.journal,
        str(fragment.begin),
        str(fragment.content_length),
        _instant(fragment.mod_time) if listing.is_persisted else "",
        f"{fragment.sum[:_SUM_BYTES_SHOWN].hex()}...",
        fragment.codec.name,
        listing.signed_url,
    ]


def _instant(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


async def _pages(
    client: AsyncClient, selection: Selection, begin_mod_time: int, end_mod_time: int, ttl_s: float
) -> AsyncIterator[tuple[bool, FragmentPage]]:
    """Pages of fragments of journals, and whether a page is the first one of its journal."""
    for journal in await matching(client, selection):
        if journal.spec.is_fully_suspended:
            continue
        pages = client.fragment_pages(
            journal.name, begin_mod_time=begin_mod_time, end_mod_time=end_mod_time, ttl_s=ttl_s
        )
        is_first = True
        async for page in pages:
            yield is_first, page
            is_first = False
