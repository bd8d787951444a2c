"""`gazctl journals read`, and the files of offsets that it begins at and writes.

    {"a/journal": 3690, "a/journal#created": 43}

The second entry says which journal the offset belongs to; see `protocol.offsets`. `gazctl savepoints get` writes such
files as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, final

import orjson
import typer

from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames, instant_option
from gazette_platform.cli.gazctl.connection import Connection, connected, matching, opened
from gazette_platform.cli.output import note, writing
from gazette_platform.client import AsyncClient, JournalListing, Reader
from gazette_platform.errors import (
    DataError,
    GazetteError,
    JournalNotFound,
    SavepointNotFound,
    ValidationError,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import join_created, learned, require_same, split_created


class Places(NamedTuple):
    """Where to begin in journals."""

    offsets: dict[str, int]
    created: dict[str, int]
    """Which journals the offsets belong to, as far as it is known."""


def read_offsets(path: Path | None) -> Places:
    """Return what a file says; nothing, if there is none.

    Raises: DataError: it is no such file. ValidationError: an offset cannot be.
    """
    if path is None:
        return Places({}, {})
    with opened(path, "--offsets") as file:
        text = file.read()
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as err:
        raise DataError(
            f"{path}: not JSON: {err} (--offsets takes a file that --offsets-out wrote)"
        ) from err
    if not isinstance(found, dict) or not all(type(v) is int for v in found.values()):
        raise DataError(f"{path}: not a JSON object of journals and offsets")
    places = Places(*split_created(found))
    for name, offset in places.offsets.items():
        if not -1 <= offset < 1 << 63:
            raise ValidationError(
                f'the offset of "{name}" must be from 0 on, or -1 for the write head ({offset})',
                path=str(path),
            )
    return places


def write_offsets(path: Path, places: Places, *, keeps: Path | None) -> None:
    """Replace the file whole.

    Args:
        keeps: what this run began with. If it is the same file, it is kept beside it.
    """
    temporary = path.with_name(path.name + ".temp")
    temporary.write_bytes(orjson.dumps(join_created(*places), option=orjson.OPT_INDENT_2))
    if keeps is not None and keeps.resolve() == path.resolve():
        keeps.rename(path.with_name(path.name + ".previous"))
    temporary.rename(path)


def read(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    block: bool = False,
    tail: bool = False,
    output: str = "-",
    offsets: Path | None = None,
    from_savepoint: str = "",
    offsets_out: Path | None = None,
    file_root: Annotated[Path | None, typer.Option(envvar="BROKER_FILE_ROOT")] = None,
    begin_mod_time: Annotated[int, typer.Option(parser=instant_option)] = 0,
) -> None:
    """Read the content of journals to a file or to stdout.

    Content of several journals is interleaved, but never within an append. Ends at the write
    heads, unless --block. With --offsets and --offsets-out of one name, a run continues where the
    last one ended. It fails if a journal was deleted and made again since.

    **Examples**

    gazctl journals read a/journal > content

    gazctl journals read a/journal --from @-1h

    gazctl journals read -l name:prefix=a/ --block --tail

    gazctl journals read -l name:prefix=a/ --offsets o.json --offsets-out o.json -o more

    gazctl journals read -l name:prefix=a/ --from-savepoint before-backfill

    Options:
        -b, --block: Wait for more content, and for new journals, until interrupted.
        --tail: Begin at the write head, where no offset is given.
        -o, --output FILE: Where to; - is stdout.
        --offsets FILE: JSON object of journals and offsets to begin at.
        --from-savepoint NAME: Begin where this savepoint says, of the journals that it names.
        --offsets-out FILE: Where to write the offsets reached.
        --file-root: Directory that file:// stores are rooted at: read their fragments directly.
        --from TIME: Skip what was persisted before: Unix seconds, @-1h for an hour ago, or an ISO 8601 time.
    """
    if from_savepoint and offsets is not None:
        raise ValidationError("goes without --offsets; give one of them", path="--from-savepoint")
    selection = Selection.of(names, selector)
    start = read_offsets(offsets)
    if offsets_out is not None and not offsets_out.absolute().parent.is_dir():
        raise ValidationError(
            f"there is no folder {offsets_out.absolute().parent} to write {offsets_out.name} to",
            path="--offsets-out",
        )
    connection = ctx.find_object(Connection)
    assert connection is not None  # set by the group

    async def work(client: AsyncClient) -> None:
        begins = await _of_savepoint(client, selection, from_savepoint) if from_savepoint else start
        out = sys.stdout.buffer if output == "-" else opened(output, "--output", "wb")
        out_name = "stdout" if output == "-" else output
        merge = _Merge(
            client,
            out,
            out_name,
            begins,
            default_offset=-1 if tail else 0,
            block=block,
            begin_mod_time=begin_mod_time,
            direct=connection.has_route_cache or file_root is not None,
        )
        try:
            with _progress(merge, is_to_file=stat.S_ISREG(os.fstat(out.fileno()).st_mode)):
                await merge.run(selection)
        finally:
            with writing(out_name):
                out.flush()
                if out is not sys.stdout.buffer:
                    out.close()
            if offsets_out is not None:
                write_offsets(offsets_out, Places(merge.offsets, merge.created), keeps=offsets)

    connected(ctx, work, file_root=file_root)


async def _of_savepoint(client: AsyncClient, selection: Selection, name: str) -> Places:
    """The offsets that a savepoint has of the journals that match; says which it does not name.

    Raises: SavepointNotFound: there is none, or it names none of them.
    """
    savepoint = await client.get_savepoint(name)
    offsets = savepoint.offsets
    found = [journal.name for journal in await client.list(selection.selector)]
    known = {journal: offsets[journal] for journal in found if journal in offsets}
    if found and not known:
        raise SavepointNotFound(
            f"savepoint {name} names none of the journals that match {selection.text} "
            f"(`gazctl savepoints get {name}` shows which it names)"
        )
    if missing := [journal for journal in found if journal not in known]:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        note(f"savepoint {name} does not name {missing[0]}{more}: read as without it")
    return Places(known, {one: savepoint.created.get(one, 0) for one in known})


@contextmanager
def _progress(merge: _Merge, *, is_to_file: bool) -> Iterator[None]:
    """Show on a terminal what was read so far, unless content may go there too."""
    if not (is_to_file and sys.stderr.isatty()):
        yield
        return
    from gazette_platform.cli.bars import transfer_bar  # noqa: PLC0415  slow to import

    with transfer_bar("reading", is_shown=True) as bar:
        task = bar.add_task("", total=None)
        merge.on_bytes = lambda count: bar.advance(task, count)
        yield


@final
class _Merge:
    """Reads journals at once into one output, span by span."""

    def __init__(
        self,
        client: AsyncClient,
        out: BinaryIO,
        out_name: str,
        begins: Places,
        *,
        default_offset: int,
        block: bool,
        begin_mod_time: int,
        direct: bool,
    ) -> None:
        self.offsets = dict(begins.offsets)
        """Offset after what was written, of every journal read or given."""
        self.created = dict(begins.created)
        """Which journals these belong to (`protocol.offsets`)."""
        self.on_bytes: Callable[[int], None] | None = None
        """Takes how many bytes were written."""
        self._client = client
        self._out = out
        self._out_name = out_name
        self._default_offset = default_offset
        self._block = block
        self._begin_mod_time = begin_mod_time
        self._direct = direct
        self._turn = asyncio.Lock()
        self._tasks = TaskGroup("read")
        self._started: set[str] = set()
        self._stopped = asyncio.Event()

    async def run(self, selection: Selection) -> None:
        """Read until all is read, or until a signal asks to stop.

        Raises: what a reader failed for. ValidationError: nothing matches, and nothing is awaited.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)
        work = self._tasks.spawn(self._outcome(selection), name="journals")
        stop = self._tasks.spawn(self._stopped.wait(), name="stop")
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and (error := work.result()) is not None:
                raise error
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            await self._tasks.close()

    async def _outcome(self, selection: Selection) -> Exception | None:
        """What reading failed for: the command reports it, so that the task must not."""
        try:
            await self._follow(selection)
        except (GazetteError, OSError, ExceptionGroup) as err:
            return err
        return None

    async def _follow(self, selection: Selection) -> None:
        """Read the journals that match; those that come later too, if blocking."""
        if not self._block:
            found = await matching(self._client, selection)
            self._tell_unread({journal.name for journal in found})
            async with asyncio.TaskGroup() as group:
                for journal in found:
                    if self._is_new(journal):
                        group.create_task(self._read(journal))
            return
        async with (
            asyncio.TaskGroup() as group,
            aclosing(self._client.watch(selection.selector)) as watch,
        ):
            async for found in watch:
                for journal in found:
                    if self._is_new(journal):
                        group.create_task(self._read(journal))

    def _tell_unread(self, found: set[str]) -> None:
        """Say which journals offsets were given of, but are not read: a name may be misspelt."""
        if unread := sorted(self.offsets.keys() - found):
            more = f" and {len(unread) - 1} others" if len(unread) > 1 else ""
            note(f"offsets are given of {unread[0]}{more}, which the command does not read")

    def _is_new(self, journal: JournalListing) -> bool:
        if journal.name in self._started:
            return False
        if journal.spec.is_fully_suspended:
            note(f"{journal.name}: skipped, it is fully suspended")
            return False
        self._started.add(journal.name)
        return True

    async def _read(self, listing: JournalListing) -> None:
        journal, kept = listing.name, self.created.get(listing.name, 0)
        offset = self.offsets.get(journal, self._default_offset)
        require_same(
            journal,
            kept,
            listing.created,
            offset=offset,
            advice="take the journal out of the file of --offsets, and it is read from its beginning; or make the "
            "savepoint again",
        )
        self.created[journal] = created = learned(kept, listing.created)
        reader = self._client.read(
            journal,
            offset,
            created=created,
            block=self._block,
            begin_mod_time=self._begin_mod_time,
            direct=self._direct,
            on_jump="continue",
        )
        async with reader:
            try:
                await self._copy(reader)
            except JournalNotFound:
                # It was deleted while we read: the others go on.
                self._started.discard(journal)
                note(f"{journal}: was deleted")

    async def _copy(self, reader: Reader) -> None:
        """Copy content, holding the turn until a span is whole, so that no append is cut."""
        has_turn = False
        start = reader.offset
        try:
            async for piece in reader:
                if not has_turn:
                    await self._turn.acquire()
                    has_turn = True
                # Written on the event loop, so that the offset is that of the last byte written whenever
                # a signal comes. A slow consumer blocks the loop, which has nothing else to do.
                with writing(self._out_name):
                    self._out.write(piece)
                self.offsets[reader.journal] = reader.offset
                if self.on_bytes is not None:
                    self.on_bytes(len(piece))
                fragment = reader.fragment
                if fragment is None or reader.offset >= fragment.end:
                    with writing(self._out_name):
                        self._out.flush()
                    self._turn.release()
                    has_turn = False
            if reader.offset > reader.write_head and reader.offset == start:
                note(
                    f"{reader.journal}: nothing to read at offset {reader.offset}, its write head "
                    f"is {reader.write_head}"
                )
            if reader.offset >= 0:
                self.offsets[reader.journal] = reader.offset
        finally:
            if has_turn:
                self._turn.release()
