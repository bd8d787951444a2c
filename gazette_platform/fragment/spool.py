"""The spool: one journal's open fragment, on local disk.

Content is written behind the committed end first and published by moving the end, so a rollback
is nothing but forgetting where the uncommitted bytes ended. Neither the fragment's SHA-1 nor its
compressed form is needed to acknowledge an append, so both trail the commits: `digest_step` and
`compress_step` read committed bytes back (from the page cache) and bring them up to date, each in
a worker thread. The owner calls them often enough that neither trails by more than
`LAG_BYTES_MAX`, and `complete` runs the rest.

Not thread-safe, except that one `write`, one `digest_step` and one `compress_step` may run in
threads at the same time: they touch disjoint state.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.codecs import compressor
from gazette_platform.fragment.completed import CompletedSpool
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

__all__ = ["COMPRESS_BATCH_BYTES", "LAG_BYTES_MAX", "Digest", "Spool", "SpoolFile"]

# Each batch becomes one gzip member or zstd frame; a MiB compresses nearly as well as a stream.
COMPRESS_BATCH_BYTES = 1 << 20

# Each worker thread reads back through a buffer of its own, since allocating one costs as much as
# hashing a tenth of it.
_local = threading.local()

# How far the digest may trail the commits before appends wait for it: a bound on the work left at
# roll time (about 10 ms), not on memory, since content is on disk.
LAG_BYTES_MAX = 16 << 20


@final
class SpoolFile:
    """An anonymous file, closed when its last holder releases it.

    Readers hold it while they stream, the spool while it is open, and the completed spool until it
    is persisted; none of them need to know of the others.
    """

    __slots__ = ("_holders", "begin", "fd")

    def __init__(self, directory: Path, begin: int) -> None:
        self.fd = _open_unnamed(directory)
        self.begin = begin
        self._holders = 1

    def hold(self) -> SpoolFile:
        """Keep the file open until a matching `release`."""
        if self._holders == 0:
            raise ValueError("spool file is closed")
        self._holders += 1
        return self

    def release(self) -> None:
        """Give up one hold; the last one closes the file."""
        self._holders -= 1
        if self._holders == 0:
            if os.fstat(self.fd).st_size > _CLOSE_INLINE_BYTES_MAX:
                _closer().submit(os.close, self.fd)
            else:
                os.close(self.fd)


def _open_unnamed(directory: Path) -> int:
    """A file without a name, so that a crash leaves no litter. A store may give it one later."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as err:
        if err.errno not in _NO_UNNAMED_FILES:
            raise
    descriptor, path = tempfile.mkstemp(prefix=".gazette-spool-", dir=directory)
    os.unlink(path)  # noqa: PTH108
    return descriptor


# What file systems answer that have no unnamed files.
_NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})

# Freeing the pages of a large unlinked file takes 10 ms per 256 MiB, which readers would notice.
_CLOSE_INLINE_BYTES_MAX = 1 << 20


@functools.cache
def _closer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="gazette-spool-close")


class Digest(Protocol):
    """A SHA-1 under way, as hashlib makes them."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes; without the GIL if they are many."""
        ...

    def digest(self) -> bytes:
        """The sum of the bytes so far."""
        ...

    def copy(self) -> Digest:
        """Another one of the same bytes."""
        ...


@dataclass(slots=True)
class _Compressed:
    """The compressed form of the first bytes of the content."""

    file: SpoolFile
    length: int = 0
    content_length: int = 0


@final
class Spool:
    """The open fragment of a journal.

    Attributes:
        journal: its name.
        begin, end: journal offsets of the committed content, half-open.
        codec: how the fragment is compressed once it is complete.
        registers: the journal's registers as of `end`.
        first_append_at: instant of the first commit; None while empty.
        is_primary: whether this broker compresses as it goes and persists first.
    """

    __slots__ = (
        "_compressed",
        "_digested_to",
        "_directory",
        "_file",
        "_sha",
        "begin",
        "codec",
        "end",
        "first_append_at",
        "is_primary",
        "journal",
        "registers",
    )

    def __init__(
        self,
        journal: str,
        *,
        directory: Path,
        begin: int = 0,
        codec: CompressionCodec = CompressionCodec.NONE,
        registers: LabelSet | None = None,
        is_primary: bool = False,
    ) -> None:
        self.journal = journal
        self.begin = begin
        self.end = begin
        self.codec = codec
        self.registers = registers if registers is not None else LabelSet()
        self.first_append_at: datetime | None = None
        self.is_primary = is_primary
        self._directory = directory
        # Idle journals are many: an empty spool holds neither files nor a compressor.
        self._file: SpoolFile | None = None
        self._compressed: _Compressed | None = None
        self._sha: Digest = hashlib.sha1(usedforsecurity=False)
        self._digested_to = begin

    @property
    def content_length(self) -> int:
        """Committed bytes."""
        return self.end - self.begin

    @property
    def _compresses(self) -> bool:
        # Offloaded gzip is one member, which cannot be made in steps that may be repeated.
        return self.is_primary and self.codec not in (
            CompressionCodec.NONE,
            CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
        )

    @property
    def digest_lag(self) -> int:
        """Committed bytes that the SHA-1 does not cover yet."""
        return self.end - self._digested_to

    @property
    def compress_lag(self) -> int:
        """Committed bytes in whole batches that are not compressed yet; 0 once complete."""
        if not self._compresses or self._file is None:
            return 0
        done = self._compressed.content_length if self._compressed else 0
        lag = self.content_length - done
        return lag - lag % COMPRESS_BATCH_BYTES

    @property
    def file(self) -> SpoolFile | None:
        """The content's file, for readers; None while nothing was ever written."""
        return self._file

    def fragment(self) -> Fragment:
        """The committed content as a fragment, without its sum: see `digested_fragment`."""
        return Fragment(self.journal, self.begin, self.end, ZERO_SUM, self.codec)

    def digested_fragment(self) -> Fragment:
        """The content that the digest covers, with its sum. May end before `end`."""
        to = self._digested_to
        total = self._sha.digest() if to > self.begin else ZERO_SUM
        return Fragment(self.journal, self.begin, to, total, self.codec)

    def write(self, chunks: Iterable[bytes | memoryview], at: int) -> int:
        """Write chunks at journal offset `at`, behind what is committed.

        Returns: the offset behind the last byte, ready to be committed.
        Raises: OSError: the disk is full or broken; nothing is committed, write again.
        """
        file = self._file
        if file is None:
            file = self._file = SpoolFile(self._directory, self.begin)
        fd, base = file.fd, self.begin
        for chunk in chunks:
            view = memoryview(chunk)
            while view:  # the kernel may take less than asked, near a full disk
                written = os.pwrite(fd, view, at - base)
                at += written
                view = view[written:]
        return at

    def commit(
        self, end: int, *, registers: LabelSet, now: datetime, digest: Digest | None = None
    ) -> None:
        """Publish what was written up to `end`.

        Args: digest: SHA-1 of all content up to `end`, if it was made on the way; from
            `digest_copy`.
        """
        if end > self.end and self.first_append_at is None:
            self.first_append_at = now
        self.end = end
        self.registers = registers
        if digest is not None:
            self._sha, self._digested_to = digest, end

    def digest_copy(self) -> Digest:
        """A digest of the committed content, to be carried on with what is written behind it.

        Raises: ValueError: the digest trails; call `digest_step` before.
        """
        if self._digested_to != self.end:
            raise ValueError(f"digest is at {self._digested_to}, not at {self.end}")
        return self._sha.copy()

    def digest_step(self, to: int) -> None:
        """Bring the SHA-1 up to journal offset `to`, at most `end`. Safe in a thread.

        Raises: OSError: reading back failed; call again.
        """
        file = self._file
        while file is not None and self._digested_to < to:
            block = _read(file.fd, self._digested_to - self.begin, to - self._digested_to)
            self._sha.update(block)
            self._digested_to += len(block)

    def compress_step(self, to: int, *, last: bool = False) -> None:
        """Bring the compressed form up to offset `to`, or the last whole batch before it.

        Does nothing for replicas, which compress only if they have to persist. Safe in a thread.

        Args: last: compress what is left, too.
        Raises: OSError: reading back or writing failed; call again.
        """
        file = self._file
        if file is None or not self._compresses:
            return
        content_to = to - self.begin
        smallest = 1 if last else COMPRESS_BATCH_BYTES
        if self._compressed is None:
            if content_to < smallest:
                return
            self._compressed = _Compressed(SpoolFile(self._directory, self.begin))
        done = self._compressed
        make = compressor(self.codec)
        while content_to - done.content_length >= smallest:
            block = _read(file.fd, done.content_length, content_to - done.content_length)
            member = make.compress(block)
            _write_all(done.file.fd, member, done.length)
            done.length += len(member)
            done.content_length += len(block)

    def complete(self) -> CompletedSpool | None:
        """Close the fragment for good; the spool must not be used any more. Safe in a thread.

        Returns: what the persister needs, or None if the fragment is empty.
        Raises: OSError: as `digest_step`; call again.
        """
        if self.content_length == 0 or self._file is None or self.first_append_at is None:
            self.discard()
            return None
        self.digest_step(self.end)
        self.compress_step(self.end, last=True)
        # What was rolled back behind the end is not part of the file that a store may take over.
        os.ftruncate(self._file.fd, self.content_length)
        compressed = self._compressed
        file, self._file, self._compressed = self._file, None, None
        return CompletedSpool(
            fragment=Fragment(self.journal, self.begin, self.end, self._sha.digest(), self.codec),
            first_append_time=self.first_append_at,
            registers=self.registers,
            is_primary=self.is_primary,
            content=file,
            compressed=compressed.file if compressed else None,
            compressed_length=compressed.length if compressed else 0,
        )

    def discard(self) -> None:
        """Drop the files of a spool whose content nobody needs."""
        for file in (self._file, self._compressed.file if self._compressed else None):
            if file is not None:
                file.release()
        self._file = self._compressed = None


def _read(fd: int, at: int, limit: int) -> memoryview:
    """Up to a batch of the file's bytes, in this thread's buffer: valid until its next call."""
    buffer: memoryview | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = memoryview(bytearray(COMPRESS_BATCH_BYTES))
    n = os.preadv(fd, [buffer[: min(limit, COMPRESS_BATCH_BYTES)]], at)
    if n == 0:
        raise OSError(f"spool file ends at byte {at}, before its committed content")
    return buffer[:n]


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        at += n
        view = view[n:]
