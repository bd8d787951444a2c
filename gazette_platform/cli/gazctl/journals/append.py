"""`gazctl journals append`."""

import asyncio
import base64
import binascii
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, final

import typer

from gazette_platform.cli.gazctl.arguments import Selection, SelectorOrNames, complete_names
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.output import note
from gazette_platform.client import AppendWriter, AsyncClient, JournalListing
from gazette_platform.errors import DataError, JournalNotFound, ValidationError
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from gazette_platform.cli.gazctl.journals.append_input import AppendInput

_KEY_BYTES_SHOWN = 80

# Content-types whose records are lines.
_LINES = frozenset({"application/x-ndjson", "text/csv"})


Framing = Literal["none", "lines", "fixed", "json-array"]
"""How the input is cut into records."""


Mapping = Literal["random", "modulo", "rendezvous", "direct"]
"""How the journal of a record is chosen."""


def append(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(autocompletion=complete_names)] = None,
    files: list[str] | None = None,
    *,
    selector: SelectorOrNames = None,
    input_file: str | None = None,
    framing: Framing = "none",
    mapping: Mapping = "random",
    is_base64: bool = False,
    decompress: bool = False,
    encoding: str = "",
) -> None:
    """Append files or stdin to a journal, or to one of several.

    Each file is one append: readers see all of it or nothing. Records of framing 'lines' and 'fixed' keep
    their delimiters, are never split, and reach each journal in the order of the input. With a selector, which
    replaces NAME, all arguments are files. Bytes stay as they are unless an option says otherwise; content that no
    table can hold, such as gzip, gives a warning.

    **Examples**

    gazctl journals append events/clicks clicks.jsonl

    echo '{"user": 7}' | gazctl journals append events/clicks

    gazctl journals append events/clicks export.json.gz --decompress --framing json-array

    gazctl journals append -l name:prefix=a/ --framing lines events.jsonl

    gazctl journals append -l name:prefix=a/ -f lines -m modulo -i keys-and-records.txt

    Options:
        NAME: Journal, in place of a selector.
        FILE: What to append, one file after the other; none, or -, is stdin.
        -i, --input FILE: A file, as Gazette's tools take it.
        -f, --framing: none: all input is one atomic append. lines: each line is one. fixed: each frame of magic
            bytes, length and body is one. json-array: each element of an array, or each of several JSON values, also
            pretty-printed, becomes a line.
        -m, --mapping: random: any journal that matches. modulo, rendezvous: by the hash of a key, the record before
            each record. direct: the record before each is its journal's name.
        --base64: Keys of framing 'lines' are base64.
        --decompress: Decompress gzip, zstd, bzip2, xz, or the one file of a zip archive.
        --encoding NAME: Encoding of the input, such as utf-16 or windows-1252, which becomes UTF-8.
    """
    if selector is not None and name is not None:
        files = [name, *(files or [])]
        name = None
    _require_one(name, mapping)
    selection = Selection.of([name] if name is not None else None, selector)
    if files and input_file is not None:
        raise typer.BadParameter("give files or --input, and not both")
    if framing in {"none", "json-array"} and mapping != "random":
        raise ValidationError("needs --framing lines or fixed", path=f"--mapping {mapping}")
    if is_base64 and framing != "lines":
        raise ValidationError("needs --framing lines", path="--base64")

    from gazette_platform.cli.gazctl.journals.append_input import (  # noqa: PLC0415  slow to import
        AppendInput,
        CannotReadError,
        require_encoding,
    )

    if encoding:
        require_encoding(encoding)

    async def work(client: AsyncClient) -> None:
        for file in files or [input_file or "-"]:
            with AppendInput(file, is_decompressed=decompress, encoding=encoding) as source:
                if framing == "none":
                    await _append_whole(client, selection, source)
                else:
                    await _append_records(
                        client, selection, source, framing, mapping, is_base64=is_base64
                    )

    try:
        connected(ctx, work)
    except (JournalNotFound, CannotReadError) as err:
        if name is None or not Path(name).is_file():
            if name is None or isinstance(err, JournalNotFound):
                raise
            raise ValidationError(
                f"{err.message} (arguments after the journal are files; -l appends to one of several journals)",
                path=err.path,
            ) from err
        journal = files[0] if files else "NAME"
        raise ValidationError(
            f"{name} is a file, and the journal comes first: `gazctl journals append {journal} {name}`"
        ) from err


def _require_one(name: str | None, mapping: Mapping) -> None:
    """Raises: ValidationError: `name` is a prefix, and records would go to any journal below it."""
    if name is not None and name.endswith("/") and mapping == "random":
        raise ValidationError(
            f"{name} is a prefix, and one of its journals would be chosen at random: name the journal, or give "
            f"-l name:prefix={name} if any of them will do",
            path="NAME",
        )


async def _append_whole(client: AsyncClient, selection: Selection, source: "AppendInput") -> None:
    listing = random.choice(await matching(client, selection))  # noqa: S311  no secret
    journal = listing.name
    await source.spool()
    result = await client.append(journal, source)
    note(f"appended {result.end - result.begin} bytes to {journal} at offset {result.begin}")
    _warn(listing, source, "none")


def _warn(listing: "JournalListing", source: "AppendInput", framing: Framing) -> None:
    """Say what may not be meant of content that was appended as it is.

    Args:
        listing: a journal that got it.
        source: of the content, read to its end.
        framing: that of the append.
    """
    from gazette_platform.lake.spec.formats import (  # noqa: PLC0415
        OVER_LINES,
        Kind,
        recognize,
        remedy,
        title,
    )

    kinds = listing.spec.labels.values_of("content-type")
    has_lines = bool(_LINES.intersection(kinds))
    found = recognize(source.head)
    if found.kind is Kind.EMPTY:
        blank = "has nothing but blanks" if source.head else "is empty"
        note(f"warning: {source.title} {blank}")
    # Frames are what they are, JSON values have become lines, and journals of another content-type are of no table.
    elif framing in {"fixed", "json-array"} or found.kind is Kind.FIXED:
        return
    elif (what := remedy(found)) and (has_lines or not kinds):
        note(
            f"warning: {source.title} is {title(found)}, and was appended as it is; to read it in SQL, {what}"
        )
    elif found.is_over_lines and (has_lines or not kinds):
        note(
            f"warning: {source.title} is CSV with line breaks in quoted fields, and was appended as it is: each line "
            f"would be a row. To read it in SQL, {OVER_LINES}"
        )
    elif what or framing == "lines" or source.last_byte == b"\n":
        return
    elif has_lines or (not kinds and found.is_records):
        note(
            f"warning: {source.title} does not end with a newline: the next append to {listing.name} would continue its "
            f"last line. Run `echo | gazctl journals append {listing.name}` to end the line now. If its fragment is stored "
            "already, append the last record again. (`--framing lines` adds the newline.)"
        )


async def _append_records(
    client: AsyncClient,
    selection: Selection,
    source: "AppendInput",
    framing: Framing,
    mapping: Mapping,
    *,
    is_base64: bool,
) -> None:
    listings = await matching(client, selection)
    journals = [journal.name for journal in listings]
    router = _Router(journals, mapping, framing, is_base64=is_base64)
    writers = [client.append_writer(journal) for journal in journals]
    try:
        async for records in _records(source, framing):
            for index, content in router.route(records).items():
                _ = await writers[index].write(b"".join(content))
        router.finish()
    finally:
        # Also after bad input: what came before it was accepted in order, and is reported.
        appended = await _close(writers)
        if router.count or sys.exc_info()[0] is None:
            count = counted(router.count, "record")
            used = sum(writer.committed_bytes > 0 for writer in writers)
            where = journals[0] if len(journals) == 1 else f"{used} of {len(journals)} journals"
            note(f"appended {count}, {appended} bytes, to {where}")
    _warn(listings[0], source, framing)


async def _close(writers: list[AppendWriter]) -> int:
    results = await asyncio.gather(*(writer.close() for writer in writers), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    appended = sum(writer.committed_bytes for writer in writers)
    if errors:
        note(f"{appended} bytes were acknowledged before the error")
        raise errors[0]
    return appended


async def _records(source: "AppendInput", framing: Framing) -> AsyncIterator[list[bytes]]:
    """Batches of whole records, delimiters included."""
    from gazette_platform.message import split_fixed, split_lines  # noqa: PLC0415  slow to import

    if framing == "json-array":
        async for values in _values(source):
            yield values
        return
    rest = b""
    async for block in source:
        if framing == "lines":
            lines, rest = split_lines(rest + block)
            records = [line + b"\n" for line in lines]
        else:
            records, rest = split_fixed(rest + block, has_headers=True)
        if records:
            yield records
    if not rest:
        return
    if framing == "fixed":
        raise DataError(f"unexpected EOF: the input ends within a frame ({len(rest)} bytes of it)")
    note("the last line has no newline: one was added")
    yield [rest + b"\n"]


async def _values(source: "AppendInput") -> AsyncIterator[list[bytes]]:
    """Batches of JSON values, each as a line."""
    from gazette_platform.lake.spec.formats import recognize, remedy, title  # noqa: PLC0415
    from gazette_platform.message.framing import JsonValues  # noqa: PLC0415

    values = JsonValues()
    try:
        async for block in source:
            if records := await asyncio.to_thread(values.feed, block):
                yield records
        if records := values.finish():
            yield records
    except DataError as err:
        found = recognize(source.head)
        what = f" ({source.title} is {title(found)}: {remedy(found)})" if remedy(found) else ""
        is_json = found.kind.value.startswith("JSON") and found.encoding == "utf-8"
        raise DataError(f"{source.title}: {err}{'' if is_json else what}") from err


@final
class _Router:
    """Sorts records by journal; remembers a key at the end of a batch for the next one."""

    def __init__(
        self, journals: list[str], mapping: Mapping, framing: Framing, *, is_base64: bool
    ) -> None:
        from gazette_platform import message  # noqa: PLC0415  slow to import

        self.count = 0
        self._journals = {name: index for index, name in enumerate(journals)}
        self._hashes = [message.fnv1a32(name.encode()) for name in journals]
        self._mapping = mapping
        self._framing = framing
        self._is_base64 = is_base64
        self._key: bytes | None = None
        self._random = random.Random()  # noqa: S311  spreads load, guards nothing
        self._index_of: Callable[[bytes], int] = {
            "random": lambda _: 0,
            "modulo": lambda key: message.modulo(key, len(journals)),
            "rendezvous": lambda key: message.rendezvous(key, self._hashes),
            "direct": self._named,
        }[mapping]

    def route(self, records: list[bytes]) -> dict[int, list[bytes]]:
        """Content for each journal, by its index."""
        routed: dict[int, list[bytes]] = {}
        if self._mapping == "random":
            self.count += len(records)
            if len(self._hashes) == 1:
                return {0: records}
            for record in records:
                index = self._random.randrange(len(self._hashes))
                routed.setdefault(index, []).append(record)
            return routed
        for record in records:
            if self._key is None:
                self._key = self._key_of(record)
            else:
                routed.setdefault(self._index_of(self._key), []).append(record)
                self._key = None
                self.count += 1
        return routed

    def finish(self) -> None:
        """Raises: DataError: a key was left without its record."""
        if self._key is not None:
            raise DataError(
                f"unexpected EOF: no record follows the key {_shown(self._key)} (--mapping "
                f"{self._mapping} takes a key before each record)"
            )

    def _key_of(self, record: bytes) -> bytes:
        if self._framing == "fixed":
            return record[8:]
        key = record.rstrip(b"\r\n")
        if not self._is_base64:
            return key
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error as err:
            raise DataError(
                f"the key of record {self.count + 1} is not base64: {_shown(key)}"
            ) from err

    def _named(self, key: bytes) -> int:
        name = key.decode(errors="replace")
        if name not in self._journals:
            raise DataError(
                f'journal "{name}" of record {self.count + 1} is not among those that match the '
                "selector (apply it, or select it, too)"
            )
        return self._journals[name]


def _shown(key: bytes) -> str:
    """A key for people. Long ones are cut."""
    return repr(key[:_KEY_BYTES_SHOWN].decode(errors="replace"))
