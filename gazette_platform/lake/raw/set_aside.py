"""Taking single fragment files out of a raw table, and back, because a person says so.

A file is moved into the folder `_aside` of its journal, which no engine reads (see `lake.spec.layout`). Brokers still serve
it, so consumers of the journal lose nothing, and nothing is deleted or rewritten. The accounts of its Hive partition
lose its rows, under the metastore's lock, before it is moved: if that ends in the middle, the file is still
where it was, and setting it aside again corrects that. Dagster gets what accounts say, as for a repair.

In a folder of this machine a move is a rename. Object stores have none: there a file is copied, and removed
when the copy exists.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import (
    DataError,
    GazetteError,
    LakeError,
    ObjectNotFound,
    ValidationError,
)
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.audits.fit import header_scanner, value_scanner
from gazette_platform.lake.raw.listing import listed_in
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import reconcile
from gazette_platform.lake.raw.recount import Recount
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.lake.reading.fragment_source import all_fragments
from gazette_platform.lake.reading.storage import Storage
from gazette_platform.lake.spec.layout import (
    aside_directory,
    directory_of,
    home_directory,
    is_aside,
    note_path,
)
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_platform.hive import MetastoreSession
    from gazette_platform.lake.reading.fragment_content import FragmentCount
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Fragment

_PAGE: Final = 100
_AGAIN_S: Final = 0.1
# Each failure means that a registrar changed the account while rows were counted.
_TRIES: Final = 3
_NOTE_BYTES_MAX: Final = 64 << 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AsideFile:
    """A file that is aside, was taken back, or would be either."""

    table: str
    fragment: Fragment
    """As brokers listed it."""
    key: str = ""
    """Key of the Hive partition; empty if the fragment's directory is not of the table's layout."""
    rows: int | None = None
    """In it; None: not known, since the file is damaged, say."""
    why: str = ""
    at: str = ""
    """When it was set aside, ISO 8601 in UTC; empty: not known."""

    @property
    def path(self) -> str:
        """Path of the file below its store while it is in the table."""
        return f"{home_directory(self.fragment)}/{self.fragment.content_name}"


@final
class SetAside:
    """Sets files of raw tables aside. Holds no state and no connections.

    Args:
        source: lists fragments, and reads them where their store does not serve this process.
        roots: where fragment stores lie.
        clock: gives the time.
        nudge: makes brokers list a journal's stores again.
    """

    def __init__(
        self,
        source: FragmentSource,
        roots: StoreRoots,
        clock: Clock,
        nudge: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._storage = Storage(roots)
        self._roots = roots
        self._content = FragmentContent(source)
        self._clock = clock
        self._nudge = nudge

    # ------------------------------------------------------------------- reading

    def files_aside(self, spec: TableSpec) -> Iterator[AsideFile]:
        """What is aside of a table, journal by journal, in the order of offsets, and why.

        Raises: GazetteError: brokers cannot be reached. A note that cannot be read is reported in its place.
        """
        for journal in self._source.journals(spec.label_selector):
            for fragment in all_fragments(self._source, journal.name):
                if is_aside(fragment):
                    yield self.described(spec.name, fragment)

    def described(self, table: str, fragment: Fragment) -> AsideFile:
        """A fragment that is aside, with what the note beside it says."""
        try:
            # The note is only for people. The file's place alone says that it is aside, so a lost
            # note changes nothing.
            files = self._storage.files(fragment.backing_store)
            text = b"".join(files.read(note_path(fragment.content_path), 0, _NOTE_BYTES_MAX))
            note = json.loads(text)
            rows = note.get("rows")
            return AsideFile(
                table=table,
                fragment=fragment,
                key=str(note.get("key", "")),
                rows=rows if isinstance(rows, int) else None,
                why=str(note.get("why", "")),
                at=str(note.get("at", "")),
            )
        except ObjectNotFound:
            why = "not known: there is no note beside it"
        except (GazetteError, ValueError, AttributeError, RecursionError) as err:
            why = f"not known: the note beside it cannot be read ({err})"
        return AsideFile(table=table, fragment=fragment, why=why)

    def named(self, spec: TableSpec, name: str) -> Fragment:
        """The persisted fragment that a file is, aside or not.

        Args:
            spec: of the table.
            name: of the file, or its path or URL as engines show it, such as Trino's ``"$path"``.

        Raises: ValidationError: it is not a fragment of the table, or of several journals. GazetteError: brokers
            cannot be reached.
        """
        folder, _, plain = name.partition("?")[0].rpartition("/")
        found: list[Fragment] = []
        for journal in self._source.journals(spec.label_selector):
            # Trino's `$path` begins with the location that engines know, so compare the journal's
            # part only.
            if folder and f"/{journal.name}/" not in f"/{folder}/":
                continue
            try:
                begin = parse_fragment_path(journal.name, plain).begin
            except ValidationError as err:
                raise ValidationError(
                    f"{plain!r} is not the name of a fragment's file, such as `gazctl journals "
                    "fragments` and `$path` show them",
                    path="FILE",
                ) from err
            found += [
                f
                for f in self._source.fragments(journal.name, begin, _PAGE)
                if f.backing_store and f.content_name == plain
            ]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValidationError(
                f"{plain} is a fragment of {found[0].journal} and of {found[1].journal}: give its path",
                path="FILE",
            )
        raise ValidationError(
            f"brokers list no file {name} in the journals of {spec.name} (`gazctl journals fragments` "
            "shows what they list)",
            path="FILE",
        )

    # ------------------------------------------------------------------- writing

    def set_aside(
        self, session: MetastoreSession, spec: TableSpec, fragment: Fragment, why: str
    ) -> AsideFile:
        """Take the file of a fragment out of its table. Idempotent.

        Args:
            session: the metastore.
            spec: of the table.
            fragment: one that brokers list as stored.
            why: for those who wonder; it goes into the note.

        Raises: LakeError: the table is not made yet, the file is gone, or a limit is reached. StoreError: the
            store refuses; the file is in the table as before. GazetteError: a server cannot be reached.
        """
        book = AccountBook.of(session, spec)
        # A former call may have died after the move: there is nothing left to do.
        if is_aside(fragment):
            return self.described(spec.name, fragment)
        # Of a directory of another layout no engine reads, so there is nothing to take out.
        values = book.place(home_directory(fragment))
        key = book.key(values)
        files = self._storage.files(fragment.backing_store)
        # Ask before the accounts change: a store without the right to write would leave them
        # without the file's rows.
        files.check_movable(fragment.content_path)
        aside = aside_directory(fragment.journal, directory_of(fragment))
        target = f"{aside}/{fragment.content_name}"
        rows, unfit = None, 0
        with suppress(DataError):  # damaged, which may be why
            counted = self._counted(spec, fragment)
            rows, unfit = counted.rows, counted.values.records if counted.values is not None else 0
        done = AsideFile(
            table=spec.name,
            fragment=fragment,
            key=key,
            rows=rows,
            why=why,
            at=self._clock.now().isoformat(timespec="seconds"),
        )
        size = files.size(fragment.content_path)
        for _ in range(_TRIES):
            # Counting may take long, and is done before the lock is taken.
            # Counting what is left may read many files, and the lock's lease is 60 s. So count
            # without it, and compare afterwards.
            seen = book.at([values]).get(values)
            before = seen.state if seen is not None else PartitionState()
            state = self._without(before, spec, fragment, rows, size, unfit)
            with book.changing() as change:
                entry = book.at([values]).get(values)
                # A registrar came between; figures from `seen` would erase what it counted.
                if (entry.state if entry is not None else PartitionState()) != before:
                    continue
                # Before the move: a crash here leaves the file in the table and out of the account.
                # Setting it aside again corrects that.
                change.put([(entry, state)] if entry is not None else [])
                try:
                    # The note before the file: a file that is aside without a note has lost its
                    # reason for good.
                    files.write(note_path(target), _note(done))
                    files.move(fragment.content_path, target)
                # Also for a cancelled command: the file is still in the table, so its account must
                # count it.
                except BaseException:
                    # If this fails, too, the file is in no account: to set it aside once more mends that.
                    with suppress(GazetteError):
                        change.put([(entry, before)] if entry is not None else [])
                    raise
            return done
        raise LakeError(
            f"{spec.name}: the accounts of Hive partition {key} are being changed by others: try again"
        )

    def restore(self, session: MetastoreSession, spec: TableSpec, fragment: Fragment) -> AsideFile:
        """Take the file of a fragment back into its table. Idempotent. Registration then counts it again.

        Raises: as `set_aside`. LakeError: another file has its place.
        """
        book = AccountBook.of(session, spec)
        if not is_aside(fragment):
            return AsideFile(table=spec.name, fragment=fragment)
        done = self.described(spec.name, fragment)
        home = done.path
        files = self._storage.files(fragment.backing_store)
        # Brokers may have stored the fragment again. A move would overwrite that file, and only
        # people can compare both.
        if files.exists(home):
            raise LakeError(
                f"{files.text(home)} exists again: compare it with {files.text(fragment.content_path)}, "
                "and remove one of both by hand"
            )
        files.check_movable(fragment.content_path)
        values = book.place(home_directory(fragment))
        # The account first awaits the fragment again; after a crash, the next round over old
        # fragments registers the file once it is back.
        with book.changing() as change:
            entry = book.at([values]).get(values)
            if entry is not None:
                state = entry.state.without_aside(fragment.begin, fragment.end)
                change.put([(entry, state)] if state != entry.state else [])
            files.move(fragment.content_path, home)
        # A note that is left over misleads no one: only notes of files that are aside are read.
        with suppress(GazetteError):
            files.remove(note_path(fragment.content_path))
        return done

    def heard(self, fragment: Fragment, *, aside: bool, timeout_s: float) -> bool:
        """Whether brokers list a fragment where it is by now, which takes them a moment.

        Args:
            fragment: that was moved.
            aside: where it is.
            timeout_s: to wait at most.

        Raises: GazetteError: brokers cannot be reached.
        """
        deadline = self._clock.monotonic() + timeout_s
        # Brokers list stores periodically; without this the command would wait for up to a refresh
        # interval.
        self._nudge(fragment.journal)
        while True:
            listed = self._source.fragments(fragment.journal, fragment.begin, _PAGE)
            mine = [f for f in listed if f.content_name == fragment.content_name]
            if mine and all(is_aside(f) == aside for f in mine):
                return True
            if self._clock.monotonic() > deadline:
                return False
            time.sleep(_AGAIN_S)

    # ------------------------------------------------------------------- accounts

    def _counted(self, spec: TableSpec, fragment: Fragment) -> FragmentCount:
        """Rows of a fragment, and what of it does not fit."""
        location = self._roots.location(fragment.backing_store, directory_of(fragment))
        return self._content.count(fragment, location, scanner=value_scanner(spec))

    def _without(  # noqa: PLR0917
        self,
        held: PartitionState,
        spec: TableSpec,
        fragment: Fragment,
        rows: int | None,
        stored_bytes: int,
        unfit: int,
    ) -> PartitionState:
        """Accounts without a fragment: as they are less its rows, or counted again where that is not possible."""
        begin, end = fragment.begin, fragment.end
        state = held.with_aside(begin, end)
        # The file was never counted, such as a new one: only remember that it is aside, so that no
        # tick awaits it.
        if not held.covers(begin, end):
            return state
        listed = listed_in(self._source, fragment.journal, directory_of(fragment), held) or ()
        left = [f for f in reconcile(held, listed).held if f.content_name != fragment.content_name]
        # The usual case, without reading any other file.
        if rows is not None and state.rows is not None:
            spans = [(f.begin, f.end) for f in left]
            return state.without(
                begin, end, rows=rows, stored_bytes=stored_bytes, left=spans, unfit=unfit
            )
        # A damaged file has no known rows to subtract, so count the others again. What was unknown
        # because of this file may be known without it.
        sizes = {
            (directory_of(f), f.content_name): self._storage.files(f.backing_store).size(
                f.content_path
            )
            for f in left
        }
        recount = Recount(self._content, sizes, scanner=lambda: header_scanner(spec))
        location = self._roots.location(fragment.backing_store, directory_of(fragment))
        counted = recount.state(state, left, location, state.created)
        if counted is None:
            raise LakeError(
                f"{spec.name}: another file beside {fragment.content_name} is gone, so its rows cannot be counted: try again"
            )
        return counted


def _note(file: AsideFile) -> bytes:
    note = {"table": file.table, "key": file.key, "rows": file.rows, "why": file.why, "at": file.at}
    return json.dumps(note).encode()
