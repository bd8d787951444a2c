"""`gazctl lake set-aside` and `repair`: files that queries skip, files that others cover, and prunes to follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from gazette_platform.cli.gazctl.lake.commands import OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    RegisteredTable,
    brokers,
    print_values,
    registered_tables,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import NONE, note, print_table, print_text, printable
from gazette_platform.cli.program import EXIT_FAILED
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, Registrar, Repairer, Shrinker, StoreRoots, TableSpec
from gazette_platform.lake.raw.account_book import AccountBook, adopt_journals
from gazette_platform.lake.raw.audits.consistency import audit_index
from gazette_platform.lake.raw.audits.fit import audit_content
from gazette_platform.lake.raw.audits.registration_status import table_standing
from gazette_platform.lake.raw.repair import catch_up
from gazette_platform.lake.raw.set_aside import AsideFile, SetAside
from gazette_platform.lake.spec.layout import is_aside
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import Fragment

_HEARD_S = 20.0
_REGISTERED_S = 60.0
_PAGE = 10


def list_aside(
    ctx: typer.Context, table: str | None, tables: Path | None, output_format: OutputFormat
) -> None:
    """List what is aside, of one table or of all."""
    settings = settings_of()
    specs, _ = specs_named(tables_folder(settings, tables), [table] if table else [])
    with brokers(ctx, settings) as client:
        work = SetAside(BrokerSource(client), StoreRoots(settings.store_roots), SystemClock())
        found = [each for spec in specs.values() for each in work.files_aside(spec)]
    if output_format != "table":
        print_values([_plain(_values(each, "aside")) for each in found], output_format)
        return
    print_table(
        ["Table", "File", "Begin", "End", "Rows", "Since", "Why"],
        [
            [
                each.table,
                each.path,
                str(each.fragment.begin),
                str(each.fragment.end),
                NONE if each.rows is None else str(each.rows),
                each.at or NONE,
                each.why or NONE,
            ]
            for each in found
        ],
    )


def set_aside(
    ctx: typer.Context,
    table: str,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    unfit: bool,
    why: str,
    dry_run: bool,
) -> None:
    """Set files of a table aside, and exit with 1 if one stays."""
    with _Work.begun(ctx, table, tables) as work:
        reasons = dict.fromkeys(work.named(names), why)
        if unfit:
            reasons |= {f: why or text for f, text in work.unfit().items() if f not in reasons}
        told = [work.set_aside(f, reason, dry_run=dry_run) for f, reason in reasons.items()]
        work.wait_until_heard([each for each in told if each["state"] == "aside"], aside=True)
    _tell(told, output_format)


def restore(
    ctx: typer.Context,
    table: str,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    dry_run: bool,
) -> None:
    """Take files of a table back, register them, and exit with 1 if one stays."""
    with _Work.begun(ctx, table, tables) as work:
        told = [work.restore(f, dry_run=dry_run) for f in work.named(names)]
        back = [each for each in told if each["state"] == "restored"]
        work.wait_until_heard(back, aside=False)
        work.register(back)
    _tell(told, output_format)


class _Work:
    """What is done to files of one table, over one client and one session of the metastore."""

    def __init__(
        self, client: Client, metastore: MetastoreClient, session: MetastoreSession, spec: TableSpec
    ) -> None:
        self._roots = StoreRoots(settings_of().store_roots)
        self._source = BrokerSource(client)
        self._metastore = metastore
        self._session = session
        self._spec = spec
        self._clock = SystemClock()

        def nudge(journal: str) -> None:
            with suppress(GazetteError):  # then brokers list it in their own time
                client.flush(f"name={journal}", timeout_s=_HEARD_S)

        self._aside = SetAside(self._source, self._roots, self._clock, nudge)

    @classmethod
    @contextmanager
    def begun(cls, ctx: typer.Context, table: str, tables: Path | None) -> Iterator[_Work]:
        """For a table of the folder of specs."""
        settings = settings_of()
        specs, _ = specs_named(tables_folder(settings, tables), [table])
        metastore = MetastoreClient(settings.required("metastore"))
        with brokers(ctx, settings) as client, metastore.connect() as session:
            yield cls(client, metastore, session, specs[table])

    def named(self, names: Iterable[str]) -> list[Fragment]:
        """The fragments that files are. Raises: ValidationError: one is none; then nothing is done."""
        return list(dict.fromkeys(self._aside.named(self._spec, name) for name in names))

    def unfit(self) -> dict[Fragment, str]:
        """Fragments that are damaged, or hold records that do not fit, and what the check `fits_spec` says of them."""
        found: dict[Fragment, str] = {}
        for finding in audit_content(self._spec, self._source, self._roots):
            if not finding.journal or not (finding.is_error or finding.unfit):
                continue
            for f in self._source.fragments(finding.journal, finding.begin, _PAGE):
                if (f.begin, f.end) == (finding.begin, finding.end) and not is_aside(f):
                    found[f] = finding.text
        return found

    def set_aside(self, fragment: Fragment, why: str, *, dry_run: bool) -> dict[str, Any]:
        """Set one file aside. Returns: what became of it."""
        if dry_run:
            would = AsideFile(table=self._spec.name, fragment=fragment, why=why)
            state = "is aside already" if is_aside(fragment) else "would be set aside"
            return _values(would, state)
        try:
            done = self._aside.set_aside(self._session, self._spec, fragment, why)
        except GazetteError as err:
            return _stays(self._spec, fragment, err)
        return _values(done, "aside")

    def restore(self, fragment: Fragment, *, dry_run: bool) -> dict[str, Any]:
        """Take one file back. Returns: what became of it."""
        if dry_run:
            would = AsideFile(table=self._spec.name, fragment=fragment)
            state = "would be restored" if is_aside(fragment) else "is in the table already"
            return _values(would, state)
        try:
            done = self._aside.restore(self._session, self._spec, fragment)
        except GazetteError as err:
            return _stays(self._spec, fragment, err)
        return _values(done, "restored")

    def wait_until_heard(self, told: Iterable[dict[str, Any]], *, aside: bool) -> None:
        """Wait until brokers list files where they are now, for some seconds."""
        deadline = self._clock.monotonic() + _HEARD_S
        for each in told:
            left = max(0.0, deadline - self._clock.monotonic())
            fragment = each[_FRAGMENT]
            if not self._aside.heard(fragment, aside=aside, timeout_s=left):
                note(
                    f"{self._spec.name}: brokers do not list {fragment.content_name} where it is yet; they "
                    "do so at their next refresh (`refresh_interval` of the journal)"
                )

    def register(self, told: Iterable[dict[str, Any]]) -> None:
        """Have accounts hold what was taken back, without waiting for the sensor's round."""
        wanted = {each["journal"] for each in told}
        if not wanted:
            return
        journals = [j for j in self._source.journals(self._spec.label_selector) if j.name in wanted]
        standing = table_standing(self._spec, journals, {}, self._session, self._clock.now())
        begins = {each.journal: each.cursor for each in standing.journals}
        registrar = Registrar(self._source, self._metastore, self._roots)
        deadline = self._clock.monotonic() + _REGISTERED_S
        try:
            done = catch_up(registrar, self._spec, begins, {}, deadline=deadline, clock=self._clock)
        except GazetteError as err:
            note(f"{self._spec.name}: the sensor `fragments` registers what is back: {err}")
        else:
            for text in done.told:
                note(f"{self._spec.name}: {text}")


_FRAGMENT = "fragment"


def _values(file: AsideFile, state: str, error: str = "") -> dict[str, Any]:
    return {
        "table": file.table,
        "state": state,
        "file": file.path,
        "journal": file.fragment.journal,
        "begin": file.fragment.begin,
        "end": file.fragment.end,
        "partition": file.key or None,
        "rows": file.rows,
        "why": file.why,
        "since": file.at or None,
        **({"error": error} if error else {}),
        _FRAGMENT: file.fragment,
    }


def _stays(spec: TableSpec, fragment: Fragment, err: GazetteError) -> dict[str, Any]:
    return _values(AsideFile(table=spec.name, fragment=fragment), "stays", str(err))


def _tell(told: list[dict[str, Any]], output_format: OutputFormat) -> None:
    if output_format == "table":
        for each in told:
            print_text(printable(_line(each)))
    else:
        print_values([_plain(each) for each in told], output_format)
    if any(each["state"] == "stays" for each in told):
        raise typer.Exit(EXIT_FAILED)


def _line(each: Mapping[str, Any]) -> str:
    rows = "" if each["rows"] is None else f", {each['rows']} row(s)"
    error = f": {each['error']}" if "error" in each else ""
    span = f"bytes [{each['begin']}, {each['end']}) of {each['journal']}{rows}"
    return f"{each['table']}: {each['state']}: {each['file']} ({span}){error}"


def _plain(each: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in each.items() if name != _FRAGMENT}


def adopt(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Have accounts of raw tables belong to the journals of now."""
    for at in registered_tables(ctx, names, tables):
        created = at.source.created(at.spec.label_selector)
        count = adopt_journals(AccountBook(at.session, at.table), created, is_dry_run=dry_run)
        verb = "would belong" if dry_run else "belong"
        print_text(
            f"{at.spec.name}: {count} Hive partition(s) {verb} to the journals that were created again"
        )


def forget_pruned(
    ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool
) -> None:
    """Have accounts follow prunes that nothing proves, and exit with 1 if some could not be looked at."""
    left = sum(_forget(each, dry_run=dry_run) for each in registered_tables(ctx, names, tables))
    if left:
        raise typer.Exit(EXIT_FAILED)


def _forget(at: RegisteredTable, *, dry_run: bool) -> int:
    """One table. Returns: how many journals could not be looked at, or not whole."""
    spec = at.spec
    shrinker, shrunk, left = Shrinker(at.source, at.roots), 0, 0
    journals = at.journals()
    cursors = at.cursors(journals)
    for journal in journals:
        after: str | None = ""
        while after is not None:
            try:
                found = shrinker.look(
                    at.session,
                    spec,
                    at.table,
                    journal,
                    cursors[journal.name],
                    after=after,
                    is_confirmed=True,
                    is_dry_run=dry_run,
                )
            except GazetteError as err:
                note(f"{spec.name}: {err}")
                left += 1
                break
            for text in found.doubts:
                note(f"{spec.name}: {text}")
            left += bool(found.doubts)
            shrunk += found.shrunk
            if found.is_complete:
                after = found.following
    verb = "would be forgotten" if dry_run else "is forgotten"
    print_text(
        f"{spec.name}: what was pruned of {shrunk} Hive partition(s) {verb}"
        + ("" if dry_run or not shrunk else "; the sensor drops those that hold nothing any more")
    )
    return left


def repair(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Move covered files aside, and exit with 1 if some that overlap stay."""
    left = sum(_repair(each, dry_run=dry_run) for each in registered_tables(ctx, names, tables))
    if left and not dry_run:
        raise typer.Exit(EXIT_FAILED)


def _repair(at: RegisteredTable, *, dry_run: bool) -> int:
    """Repair one table. Returns: how many files that overlap others stay."""
    spec, table = at.spec, at.table
    found = [
        finding
        for finding in audit_index(at.session, spec, table, at.source, at.roots)
        if finding.kind == "overlap" and finding.excluded
    ]
    if dry_run:
        for finding in found:
            print_text(f"{spec.name}: would look at {finding.path}: {finding.text}")
        return len(found)
    cursors = at.cursors(at.journals())
    moved = 0
    repairer = Repairer(at.source, at.roots)
    while found:
        done = repairer.repair(at.session, table, found, cursors)
        for each in done.moved:
            print_text(f"{spec.name}: moved {each.finding.path} to {each.target}")
        for path, why in {**done.waiting, **done.refused}.items():
            note(f"{spec.name}: {path} stays: {why}")
        moved += len(done.moved)
        gone = {each.finding.path for each in done.moved}
        found = [finding for finding in found if finding.path not in gone]
        # A call is bounded. One that moved nothing has nothing more to do.
        if not gone:
            break
    print_text(f"{spec.name}: {moved} file(s) moved aside, {len(found)} that overlap stay")
    return len(found)
