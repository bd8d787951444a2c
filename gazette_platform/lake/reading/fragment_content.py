"""Reading persisted fragments from where engines read them: samples and row counts.

Counting reads each new fragment once, decompressed in large blocks by C code that releases the GIL
(about half a gigabyte of content a second a core), and never asks an engine. A row is a line; a last
line without newline counts, as it does in Trino and Spark. What lies in an object store is read there,
by this process; where that is not possible, through brokers. A fragment may be larger than a tick has
time for: reading ends when time is up, and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, final
from urllib.parse import urlsplit

import orjson
from typing_extensions import override

from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, GazetteError, LakeError, ObjectNotFound, StoreError
from gazette_platform.lake.reading.sample_check import SAMPLE_BYTES
from gazette_platform.lake.reading.storage import object_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.reading.scanners import LineScanner, ValueReport
    from gazette_platform.lake.reading.storage import StoreFiles
    from gazette_platform.protocol import Fragment

_log = logging.getLogger(__name__)
_STORED_BLOCK_BYTES = 1 << 20
# Compressed, this is enough for a sample in nearly all cases.
_HEAD_BYTES = 64 << 10
# A stored block may inflate a thousandfold.
_CONTENT_BLOCK_BYTES = 4 << 20
# Each holds a file open, or a few MiB.
_UNFINISHED_MAX = 4
_UNFINISHED_S = 6 * 3600.0
_Key = tuple[str, str, str]

COUNTED_BYTES_MIN: Final = 4 << 20
"""What is counted of a fragment when time is up: a tick that was late from its start is to get on all the same.
Good lines take some milliseconds, and lines that do not fit, each examined by itself, up to ten seconds."""


@final
@dataclass(frozen=True, slots=True)
class FragmentCount:
    """What reading a fragment showed: rows, and stored bytes if this process could see its file."""

    rows: int | None
    """None: time was up before the end; the other values cover what was read by then."""
    stored_bytes: int | None
    head: bytes = b""
    """The first bytes of content, at most `SAMPLE_BYTES`."""
    columns: frozenset[str] = frozenset()
    """Those of the columns asked for that occur as keys of JSON records."""
    values: ValueReport | None = None
    """What a scanner of values found, if there was one."""
    is_resumed: bool = False
    """Whether it went on where an earlier count had ended."""


@final
@dataclass(frozen=True, slots=True)
class Stamp:
    """What distinguishes a fragment's file from another one in its place."""

    text: str = ""
    """Size, and time if it is on this machine; empty: this process cannot see the file."""
    stored_bytes: int | None = None


def _never() -> bool:
    return False


@final
class FragmentContent:
    """Content of fragments: from their files, else through brokers."""

    def __init__(self, source: FragmentSource) -> None:
        self._source = source

    def blocks(self, fragment: Fragment, location: str) -> Iterator[bytes]:
        """Decompressed content in blocks of a few MiB.

        Args:
            location: directory of the fragment's file, as engines know it.

        Raises: LakeError: there is no such file. DataError: it is damaged.
        """
        yield from self._blocks(fragment, location, _Tally())

    def _blocks(
        self, fragment: Fragment, location: str, tally: _Tally, *, is_paused: bool = False
    ) -> Iterator[bytes]:
        pieces = self._stored(fragment, location, is_paused=is_paused)
        if pieces is None:
            yield from self._source.content(fragment)
            return
        yield from _decompressed(fragment, _Where(fragment, location), pieces, tally)

    def _stored(
        self, fragment: Fragment, location: str, *, is_paused: bool
    ) -> Iterator[bytes] | None:
        """Stored bytes; None if the store does not serve this process: then brokers do.

        Args:
            is_paused: whether there may be minutes between two pieces: no connection is held then.

        Raises: LakeError: there is no such file.
        """
        path = local_path(fragment, location)
        if path is not None:
            return _read_file(fragment, path)
        files = _files(fragment)
        if files is None:
            return None
        try:
            end = files.size(fragment.content_path) if is_paused else None
            pieces = files.read(fragment.content_path, 0, end)
            first = next(pieces, b"")
        except ObjectNotFound as err:
            raise _missing(fragment, f"{location}/{fragment.content_name}") from err
        except StoreError as err:
            _note_away(fragment, files, err)
            return None
        return _tail(fragment, first, pieces)

    def count(
        self,
        fragment: Fragment,
        location: str,
        *,
        columns: Iterable[str] = (),
        scanner: LineScanner | None = None,
        is_over: Callable[[], bool] = _never,
        owner: str = "",
    ) -> FragmentCount:
        """Rows and stored size of a fragment, as engines will see them.

        Args:
            columns: names to look for.
            scanner: looks at all lines; a new one for each fragment.
            is_over: whether time is up; some is read all the same.
            owner: who goes on where it ended when time was up, in this process, if it asks again for the
                same file; empty: none does.

        Raises: LakeError: there is no such file. DataError: it is damaged, or of another length.
        """
        stamp = self.stamp(fragment, location).text if owner else ""
        key = (owner, location, fragment.content_path)
        counting = unfinished.take(key, stamp) if stamp else None
        is_resumed = counting is not None
        if counting is None:
            tally = _Tally()
            blocks = self._blocks(fragment, location, tally, is_paused=bool(stamp))
            unseen = {name: orjson.dumps(name) for name in columns}
            counting = _Counting(fragment, blocks, tally, unseen, scanner)
        found = counting.go_on(is_over, is_resumed=is_resumed)
        if found.rows is None and stamp:
            unfinished.keep(key, stamp, counting)
        return found

    def is_unfinished(self, fragment: Fragment, location: str, owner: str) -> bool:
        """Whether a count of `owner` can go on where it ended."""
        return unfinished.has((owner, location, fragment.content_path))

    def stamp(self, fragment: Fragment, location: str) -> Stamp:
        """What its file is right now, without reading it; an empty stamp if that cannot be seen."""
        path = local_path(fragment, location)
        try:
            if path is not None:
                info = path.stat()
                return Stamp(f"{info.st_size} {info.st_mtime_ns}", info.st_size)
            files = _files(fragment)
            size = files.size(fragment.content_path) if files is not None else None
        except (OSError, StoreError):
            return Stamp()
        return Stamp(str(size), size) if size is not None else Stamp()

    def require_stored(self, fragment: Fragment, location: str) -> None:
        """Refuse a location without the fragment's file: a wrong root, most likely.

        Raises: LakeError: names the file and the setting.
        """
        path = local_path(fragment, location)
        if path is not None:
            if not path.is_file():
                raise _missing(fragment, str(path))
            return
        files = _files(fragment)
        if files is None:
            return
        try:
            if not files.exists(fragment.content_path):
                raise _missing(fragment, f"{location}/{fragment.content_name}")
        except StoreError as err:
            _note_away(fragment, files, err)

    def head(self, fragment: Fragment, location: str, length: int) -> bytes:
        """The first `length` bytes of content, or all if there are fewer."""
        head = b""
        for block in self._head_blocks(fragment, location):
            head += block
            if len(head) >= length:
                break
        return head[:length]

    def _head_blocks(self, fragment: Fragment, location: str) -> Iterator[bytes]:
        """Content from the beginning on, for who needs little of it: of an object by ranges."""
        files = _files(fragment) if local_path(fragment, location) is None else None
        if files is None:
            yield from self.blocks(fragment, location)
            return
        try:
            size = files.size(fragment.content_path)
            first = b"".join(files.read(fragment.content_path, 0, min(size, _HEAD_BYTES)))
        except ObjectNotFound as err:
            raise _missing(fragment, f"{location}/{fragment.content_name}") from err
        except StoreError as err:
            _note_away(fragment, files, err)
            yield from self._source.content(fragment)
            return
        pieces = _tail(fragment, first, _ranges(files, fragment.content_path, len(first), size))
        yield from _decompressed(fragment, _Where(fragment, location), pieces, _Tally())


@final
@dataclass(slots=True)
class _Tally:
    """What a read of stored bytes has come to; None: others read them."""

    stored: int | None = None


@final
@dataclass(slots=True)
class _Counting:
    """A count of one fragment, which may be paused."""

    fragment: Fragment
    blocks: Iterator[bytes]
    tally: _Tally
    unseen: dict[str, bytes]
    scanner: LineScanner | None
    seen: set[str] = field(default_factory=set)
    head: bytes = b""
    rows: int = 0
    length: int = 0
    last: bytes = b"\n"

    def go_on(self, is_over: Callable[[], bool], *, is_resumed: bool) -> FragmentCount:
        """Count to the end, or until time is up and some was read."""
        enough = self.length + COUNTED_BYTES_MIN
        whole = self.fragment.content_length
        for block in self.blocks:
            self._take(block)
            if self.length > whole:
                raise _wrong_length(self.fragment, "more")
            if enough <= self.length < whole and is_over():
                return self._result(None, is_resumed=is_resumed)
        if self.length != whole:
            raise _wrong_length(self.fragment, str(self.length))
        return self._result(self.rows + (self.last != b"\n"), is_resumed=is_resumed)

    def _take(self, block: bytes) -> None:
        if len(self.head) < SAMPLE_BYTES:
            self.head += bytes(block[: SAMPLE_BYTES - len(self.head)])
        if self.unseen:
            found = [name for name, key in self.unseen.items() if key in block]
            self.seen.update(found)
            for name in found:
                del self.unseen[name]
        if self.scanner is not None:
            self.scanner.feed(block)
        self.rows += block.count(b"\n")
        self.length += len(block)
        self.last = block[-1:] or self.last

    def _result(self, rows: int | None, *, is_resumed: bool) -> FragmentCount:
        scanner = self.scanner
        values = scanner.report(is_cut=rows is None) if scanner is not None else None
        if rows is not None and scanner is not None:
            rows -= scanner.headers
        return FragmentCount(
            rows,
            self.tally.stored if rows is not None else None,
            self.head,
            frozenset(self.seen),
            values,
            is_resumed,
        )


@final
class _Unfinished:
    """Counts that wait for more time. Any thread may ask; each gets one for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, tuple[str, _Counting, float]] = OrderedDict()

    def has(self, key: _Key) -> bool:
        """Whether there is one."""
        with self._lock:
            return key in self._found

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._found.clear()

    def take(self, key: _Key, stamp: str) -> _Counting | None:
        """The count, if it is of the file that there is now."""
        with self._lock:
            known = self._found.pop(key, None)
        return known[1] if known is not None and known[0] == stamp else None

    def keep(self, key: _Key, stamp: str, counting: _Counting) -> None:
        """Keep a count, and forget those that were not picked up, or that are too many."""
        now = time.monotonic()
        with self._lock:
            self._found[key] = (stamp, counting, now)
            old = [k for k, (_, _, since) in self._found.items() if since < now - _UNFINISHED_S]
            for each in [*old, *list(self._found)[: len(self._found) - _UNFINISHED_MAX]]:
                self._found.pop(each, None)


unfinished = _Unfinished()
"""Those of this process: sensors make new readers at each tick."""


@final
@dataclass(frozen=True, slots=True)
class _Where:
    """Names a file in messages."""

    fragment: Fragment
    location: str

    @override
    def __str__(self) -> str:
        path = local_path(self.fragment, self.location)
        return str(path) if path is not None else f"{self.location}/{self.fragment.content_name}"


def _decompressed(
    fragment: Fragment, where: _Where, pieces: Iterable[bytes], tally: _Tally
) -> Iterator[bytes]:
    codec = decompressor(fragment.codec)
    tally.stored = 0
    try:
        for stored in pieces:
            tally.stored += len(stored)
            yield from decompress_steps(codec, stored, step_bytes_max=_CONTENT_BLOCK_BYTES)
        codec.finish()
    except DataError as err:
        raise DataError(
            f"fragment {where} is damaged: {err} (restore the file, or move it out of the table)"
        ) from err


def _read_file(fragment: Fragment, path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while stored := file.read(_STORED_BLOCK_BYTES):
                yield stored
    except FileNotFoundError as err:
        raise _missing(fragment, str(path)) from err
    except OSError as err:
        raise LakeError(f"cannot read fragment {path}: {err.strerror}") from err


def _tail(fragment: Fragment, first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    """`first`, and what follows it; errors of the store as those of the lake."""
    yield first
    try:
        yield from rest
    except StoreError as err:
        raise LakeError(
            f"{fragment.content_path} of {fragment.backing_store} cannot be read to its end: {err} "
            "(it is tried again)"
        ) from err


def _ranges(files: StoreFiles, path: str, begin: int, size: int) -> Iterator[bytes]:
    length = _STORED_BLOCK_BYTES
    while begin < size:
        yield from files.read(path, begin, min(size, begin + length))
        begin, length = begin + length, 2 * length


def _files(fragment: Fragment) -> StoreFiles | None:
    """The files of a fragment's object store; None if it does not serve this process."""
    try:
        files = object_files(fragment.backing_store)
    except GazetteError as err:
        _log.debug("%s is read through brokers: %s", fragment.backing_store, err)
        return None
    return None if files.is_away else files


def _note_away(fragment: Fragment, files: StoreFiles, err: StoreError) -> None:
    files.note_away()
    _log.warning(
        "%s does not serve this process, so its fragments are read through brokers, which is slower: "
        "%s",
        fragment.backing_store,
        err,
    )


def _wrong_length(fragment: Fragment, held: str) -> DataError:
    return DataError(
        f"fragment {fragment.content_path} holds {held} bytes where its name says "
        f"{fragment.content_length} (restore the file, or move it out of the table)"
    )


def _missing(fragment: Fragment, where: str) -> LakeError:
    return LakeError(
        f"the broker says that {fragment.content_path} is persisted, but there is no file {where}: "
        f"does `lake.store_roots` map {fragment.backing_store} to the right place?"
    )


def local_path(fragment: Fragment, location: str) -> Path | None:
    """Where the fragment's file is on this machine, or None if it lies in an object store."""
    parts = urlsplit(location)
    if parts.scheme != "file":
        return None
    # Locations hold paths as they are: engines and brokers do not percent-encode them.
    return Path(location.removeprefix("file://")) / fragment.content_name
