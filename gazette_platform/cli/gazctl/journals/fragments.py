"""`gazctl journals fragments` and `verify`: list journals' fragments, read them, and compare them with what brokers and names say."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import typer

from gazette_platform.cli.gazctl.arguments import (
    Names,
    Selection,
    SelectorOrNames,
    TableOrJson,
    instant_option,
    seconds_of,
)
from gazette_platform.cli.gazctl.connection import FileRoot, connected, matching
from gazette_platform.cli.gazctl.journals.prune import OpenStores, check_is_alone
from gazette_platform.cli.output import note, print_json, print_table, print_text
from gazette_platform.client import AsyncClient, FragmentListing, FragmentPage, JournalListing
from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import (
    ChecksumMismatch,
    DataError,
    GazetteError,
    StoreError,
    ValidationError,
)
from gazette_platform.fragment.cover_set import (
    Finding,
    Kind,
    StoredFragment,
    audit_names,
    missing_of,
)
from gazette_platform.protocol import fragment_json, fragments_text
from gazette_platform.protocol.fragments import FragmentCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gazette_platform.protocol import Fragment


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
                _fragment_row(each)[: len(columns)]
                async for _, page in found
                for each in page.fragments
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


def _fragment_row(listing: FragmentListing) -> list[str]:
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


_READS_MAX: Final = 4
_STEP_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Verified:
    """What was found of one journal."""

    journal: str
    fragments: int = 0
    """Stored ones; copies in several stores count each."""
    stored_bytes: int = 0
    begin: int = 0
    end: int = 0
    """Offsets between which something is stored."""
    read: int = 0
    """Fragments whose content was read."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Findings that need an action."""
        return sum(finding.kind.is_fault for finding in self.findings)


class _Damaged(Exception):
    def __init__(self, kind: Kind, detail: str) -> None:
        self.kind = kind
        super().__init__(detail)


@final
class Verifier:
    """Verifies journals one after the other.

    Args:
        file_root: directory that ``file`` stores are rooted at; None refuses these.
        sample: how many fragments of each journal are read, chosen at random; None: all.
        rng: chooses them.
        on_planned: takes how many fragments of a journal are about to be read.
        on_read: takes the stored bytes of each fragment that was read.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        file_root: Path | None,
        sample: int | None,
        rng: random.Random,
        on_planned: Callable[[str, int], None],
        on_read: Callable[[int], None],
    ) -> None:
        self._client = client
        self._sample = sample
        self._rng = rng
        self._on_planned = on_planned
        self._on_read = on_read
        self._stores = OpenStores(file_root)

    async def verify(self, journal: JournalListing) -> Verified:
        """Verify one journal.

        Raises: GazetteError: its brokers or stores cannot be listed, so nothing can be said of it.
        Cancellation: safe.
        """
        await check_is_alone(self._client, journal.name)
        known: list[Fragment] = []
        if not journal.spec.is_fully_suspended:
            known = [each.fragment for each in await self._client.fragments(journal.name)]
        urls = [*journal.spec.fragment.stores, *(each.backing_store for each in known)]
        result = Verified(journal.name)
        stored: list[StoredFragment] = []
        for url in filter(None, dict.fromkeys(urls)):

            def strange(path: str, err: ValidationError, url: str = url) -> None:
                result.findings.append(Finding(Kind.STRANGE, 0, 0, str(err), path, url))

            stored += await self._stores.fragments(journal.name, url, strange)
        result.fragments = len(stored)
        result.stored_bytes = sum(each.size for each in stored)
        result.begin = min((each.fragment.begin for each in stored), default=0)
        result.end = max((each.fragment.end for each in stored), default=0)
        result.findings += audit_names(stored, known)
        result.findings += [
            _of(fragment, Kind.MISSING, "brokers list it, and the store does not have it")
            for fragment in missing_of(stored, known)
            if not await self._stores.store(fragment.backing_store).exists(fragment.content_path)
        ]
        await self._read(stored, result)
        return result

    async def _read(self, stored: Sequence[StoredFragment], result: Verified) -> None:
        # Their length is wrong already: the content says nothing more.
        wrong = {(each.store, each.path) for each in result.findings if each.kind is Kind.LENGTH}
        chosen = [
            each
            for each in stored
            if (each.fragment.backing_store, each.fragment.content_path) not in wrong
        ]
        if self._sample is not None and self._sample < len(chosen):
            chosen = self._rng.sample(chosen, self._sample)
        self._on_planned(result.journal, len(chosen))
        waiting = iter(chosen)

        async def work() -> None:
            for each in waiting:
                try:
                    await self._check(each.fragment)
                except _Damaged as err:
                    result.findings.append(_of(each.fragment, err.kind, str(err)))
                except StoreError as err:
                    result.findings.append(_of(each.fragment, Kind.UNREAD, str(err)))
                else:
                    result.read += 1
                self._on_read(each.size)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_READS_MAX):
                tasks.create_task(work())

    async def _check(self, fragment: Fragment) -> None:
        """Read a fragment. Raises: _Damaged. StoreError: it cannot be read."""
        check = FragmentCheck(fragment)
        inflate = decompressor(fragment.codec)

        def contents(piece: bytes) -> Iterator[bytes]:
            try:
                yield from decompress_steps(inflate, piece, step_bytes_max=_STEP_BYTES)
            except DataError as err:
                raise _Damaged(Kind.CODEC, str(err)) from err

        def take(pieces: Iterable[bytes]) -> None:
            for content in pieces:
                check.take(content)

        try:
            store = self._stores.store(fragment.backing_store)
            async with aclosing(store.get(fragment.content_path)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(take, contents(piece))
            try:
                inflate.finish()
            except DataError as err:
                raise _Damaged(Kind.CODEC, str(err)) from err
            check.finish()
        except ChecksumMismatch as err:
            raise _Damaged(Kind.DIGEST, str(err)) from err
        except DataError as err:
            raise _Damaged(Kind.LENGTH, str(err)) from err


def _of(fragment: Fragment, kind: Kind, detail: str) -> Finding:
    return Finding(
        kind, fragment.begin, fragment.end, detail, fragment.content_path, fragment.backing_store
    )


def failed(journal: str, error: GazetteError) -> Verified:
    """What is known of a journal that could not be looked at."""
    return Verified(journal, findings=[Finding(Kind.UNREAD, 0, 0, str(error))])


def verify(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: TableOrJson = "table",
    sample: Annotated[int | None, typer.Option(min=0)] = None,
    file_root: FileRoot = None,
) -> None:
    """Verify that stores hold the content of journals, whole and unchanged.

    Lists the stores and asks the brokers. Then reads each stored fragment, and compares it with the length
    and SHA-1 in its name. Nothing is changed.

    Faults: gap (no store and no broker has these offsets), conflict (two contents of the same offsets),
    missing (brokers list it, the store lacks it), length, digest, codec (it cannot be decompressed),
    strange (the name is not that of a fragment), unread (the store does not answer). An overlap is
    reported, and is not a fault: it is left by a fail-over.

    Exits with 1 if there is a fault. Other journals are verified all the same. JSON is one line per finding,
    and one per journal with `finding: summary`.

    **Examples**

    gazctl journals verify -l name:prefix=a/

    gazctl journals verify a/journal --sample 100 -o json

    Options:
        -o, --format: Output format.
        --sample COUNT: Read only so many fragments of each journal, chosen at random. 0 reads none.
    """
    selection = Selection.of(names, selector)
    is_json = output_format == "json"

    async def work(client: AsyncClient) -> list[Verified]:
        journals = await matching(client, selection)
        from gazette_platform.cli.bars import FragmentBar  # noqa: PLC0415  slow to import

        results = []
        with FragmentBar("verifying", is_shown=sys.stderr.isatty()) as bar:
            verifier = Verifier(
                client,
                file_root=file_root,
                sample=sample,
                rng=random.Random(),  # noqa: S311  not for secrets
                on_planned=bar.add,
                on_read=bar.advance,
            )
            for journal in journals:
                try:
                    result = await verifier.verify(journal)
                except GazetteError as err:
                    result = failed(journal.name, err)
                if is_json:
                    _print_lines(result)
                results.append(result)
        return results

    results = connected(ctx, work, file_root=file_root)
    if not is_json and any(result.findings for result in results):
        print_table(
            ["Journal", "Finding", "Begin", "End", "Object", "Detail"],
            [_finding_row(result.journal, each) for result in results for each in result.findings],
        )
    faults = sum(result.faults for result in results)
    note(
        f"{len(results)} journals, {sum(result.fragments for result in results)} fragments, "
        f"{sum(result.read for result in results)} of them read and whole: {faults} faults"
    )
    if faults:
        raise DataError(
            f"{faults} faults were found (restore what is damaged or missing from a copy of the store; "
            "docs/guides/operating.md says what each means)"
        )


def _finding_row(journal: str, finding: Finding) -> list[str]:
    return [
        journal,
        finding.kind.value,
        str(finding.begin),
        str(finding.end),
        finding.path,
        finding.detail,
    ]


def _print_lines(result: Verified) -> None:
    for each in result.findings:
        print_json(
            {
                "journal": result.journal,
                "finding": each.kind.value,
                "fault": each.kind.is_fault,
                "begin": each.begin,
                "end": each.end,
                "store": each.store,
                "path": each.path,
                "detail": each.detail,
            }
        )
    print_json(
        {
            "journal": result.journal,
            "finding": "summary",
            "begin": result.begin,
            "end": result.end,
            "fragments": result.fragments,
            "storedBytes": result.stored_bytes,
            "read": result.read,
            "faults": result.faults,
        }
    )
