"""The spool: one journal's open fragment, on local disk.

Content is written behind the committed end first, and published by moving that end. To roll back,
nothing has to be done but to forget where the uncommitted bytes ended. An append can be acknowledged
without the fragment's SHA-1 and without its compressed form, so both trail the commits: `digest_step`
and `compress_step` read committed bytes back (from the page cache) and bring them up to date, each in a
worker thread. The owner calls the first often enough that it trails by less than `LAG_BYTES_MAX`, and
`complete` does the rest of it. What is not compressed by then is left to whoever persists.

Not thread-safe, except that one `write`, one `digest_step` and one `compress_step` may run in
threads at the same time: they touch disjoint state.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import TYPE_CHECKING, Protocol, Self, final

from gazette_platform.broker.spool.disk import (
    COMPRESS_BATCH_BYTES,
    CompletedSpool,
    CompressedForm,
    SpoolFile,
    read_block,
)
from gazette_platform.broker.spool.head_records import FragmentState
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from gazette_platform.broker.spool.tenure import Tenure

# How far the digest may trail the commits before appends wait for it. This bounds the work that is left
# when the fragment closes (about 10 ms), not memory: the content is on disk.
LAG_BYTES_MAX = 16 << 20

# How far the digest in the record may trail the real one, if the digest is made with each commit.
_PROVE_BYTES = 256 << 10


class Digest(Protocol):
    """A SHA-1 under way, as hashlib makes them."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes; the GIL is released if they are many."""
        ...

    def digest(self) -> bytes:
        """The sum of the bytes so far."""
        ...

    def copy(self) -> Digest:
        """Another digest of the same bytes."""
        ...


@final
class Spool:
    """The open fragment of a journal.

    Attributes:
        journal: its name.
        begin: journal offset of the first byte.
        end: journal offset behind the committed content.
        codec: how the fragment is compressed once it is complete.
        registers: the journal's registers as of `end`.
        first_append_at: instant of the first commit; None while empty.
        is_primary: whether this broker compresses as it goes and persists first.
        synced_to: offset below which the content is on disk, and survives a power failure.
        is_doubtful: whether an attempt to bring it to disk failed.
    """

    __slots__ = (
        "_compressed",
        "_digested_to",
        "_directory",
        "_file",
        "_first_append_us",
        "_may_compress",
        "_proved",
        "_sha",
        "_synced_proof",
        "_syncs",
        "_tenure",
        "_tenure_id",
        "begin",
        "codec",
        "end",
        "first_append_at",
        "is_doubtful",
        "is_primary",
        "journal",
        "registers",
        "synced_to",
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
        tenure: Tenure | None = None,
        syncs: bool = False,
    ) -> None:
        """Begin with nothing.

        Args:
            journal: its name.
            directory: of files without a name.
            begin: journal offset.
            codec: of the fragment once it is stored.
            registers: as of `begin`.
            is_primary: as the attribute.
            tenure: gives the content's file a name, so that it survives the process; None: it has none.
            syncs: whether the content is brought to the disk itself once it is closed.
        """
        self.journal = journal
        self.begin = begin
        self.end = begin
        self.codec = codec
        self.registers = registers if registers is not None else LabelSet()
        self.first_append_at: datetime | None = None
        self.is_primary = is_primary
        self._directory = directory
        # There are many idle journals, so an empty spool holds neither files nor a compressor.
        self._file: SpoolFile | None = None
        self._compressed: CompressedForm | None = None
        self._may_compress = True
        # One state that grows, so that no byte is hashed twice: fragments have hundreds of
        # megabytes.
        self._sha: Digest = hashlib.sha1(usedforsecurity=False)
        self._digested_to = begin
        # An offset and the digest below it, in one value: a thread moves the digest while others look.
        self._proved = (begin, ZERO_SUM)
        self._tenure = tenure
        self._tenure_id = tenure.id if tenure is not None else ""
        self._syncs = syncs
        self._first_append_us = 0
        self.synced_to = begin
        self.is_doubtful = False
        self._synced_proof = self._proved  # of what is on disk

    @classmethod
    def recovered(
        cls,
        journal: str,
        file: SpoolFile,
        state: FragmentState,
        sha: Digest,
        *,
        directory: Path,
        tenure_id: str = "",
    ) -> Self:
        """A fragment that another process left; nothing may be added to it.

        Args:
            journal: its name.
            file: its content, which this takes over.
            state: what was committed to it.
            sha: of all of the content.
            directory: of files without a name.
            tenure_id: of the tenure that it is of; empty: it is not known.
        """
        spool = cls(journal, directory=directory, begin=state.begin, codec=state.codec)
        now = state.first_append_at
        spool.commit(state.end, registers=state.registers, now=now, digest=sha)
        # The persister compresses it. The journal, which is being taken over, must not wait for
        # that.
        spool._file, spool._may_compress, spool._tenure_id = file, False, tenure_id
        return spool

    @property
    def content_length(self) -> int:
        """Committed bytes."""
        return self.end - self.begin

    @property
    def _compresses(self) -> bool:
        # Offloaded gzip is one stream, whose state would take memory as long as the spool is open.
        return (
            self.is_primary
            and self._may_compress
            and self.codec
            not in (CompressionCodec.NONE, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION)
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
    def is_behind(self) -> bool:
        """Whether the SHA-1 or the compression lags behind by a whole batch."""
        if self.end - self.begin < COMPRESS_BATCH_BYTES:
            return False
        return self.digest_lag >= COMPRESS_BATCH_BYTES or self.compress_lag > 0

    @property
    def is_compressing(self) -> bool:
        """Whether there is a compressed form of some of the content, which takes room on the disk."""
        return self._compressed is not None

    @property
    def file(self) -> SpoolFile | None:
        """The content's file, for readers; None while nothing was ever written."""
        return self._file

    def fragment(self) -> Fragment:
        """The committed content as a fragment, without its sum; see `digested_fragment`."""
        return Fragment(self.journal, self.begin, self.end, ZERO_SUM, self.codec)

    def digested_fragment(self) -> Fragment:
        """The content that the digest covers, with its sum. May end before `end`."""
        to = self._digested_to
        total = self._sha.digest() if to > self.begin else ZERO_SUM
        return Fragment(self.journal, self.begin, to, total, self.codec)

    def write(self, chunks: Iterable[bytes | memoryview], at: int) -> int:
        """Write chunks at journal offset `at`, after what is committed.

        Returns: the offset after the last byte, ready to be committed.
        Raises: OSError: the disk is full or broken; nothing is committed, and the write may be repeated.
        """
        file = self._file
        if file is None:
            file = self._file = self._begin_file()
        fd, base = file.fd, self.begin
        # A draft after a rollback begins where another one did, and takes the place of what was
        # synced.
        if at <= self.synced_to:
            # What was synced there is rewritten, and so is all that could not be synced.
            self.synced_to, self.is_doubtful = at, False
        for chunk in chunks:
            view = memoryview(chunk)
            while view:  # the kernel may take less than it was given, near a full disk
                written = os.pwrite(fd, view, at - base)
                at += written
                view = view[written:]
        return at

    def _begin_file(self) -> SpoolFile:
        if self._tenure is not None:
            return self._tenure.content_file(self.begin)
        return SpoolFile(self._directory, self.begin)

    def note(
        self, tenure: Tenure, end: int, registers: LabelSet, now: datetime, *, is_durable: bool
    ) -> None:
        """Record that content written up to `end` counts, before it is committed.

        Args:
            tenure: that of the spool.
            end: journal offset.
            registers: as of `end`.
            now: becomes the instant of the first append, if this is the first.
            is_durable: whether the content is on disk, with all that was committed before.

        Raises: OSError: the record before this one still holds.
        """
        begin, file = self.begin, self._file
        # The first append's instant is recorded, too: the path postfix is made of it, and whoever stores the fragment
        # after a crash has to choose the same partition.
        at_us = 0
        if end > begin:
            at_us = self._first_append_us
            if not at_us:
                at_us = self._first_append_us = int(now.timestamp() * 1e6)
        state = FragmentState(
            begin,
            end,
            registers,
            self.codec,
            at_us,
            # The record may be on disk before the content is. It says how far the content is, or a
            # power failure would leave a record of bytes that never arrived.
            end if is_durable else min(self.synced_to, end),
            *self._proof(end),
            is_durable,
        )
        tenure.record(file.ordinal if file is not None else 0, state)

    def note_less(self, tenure: Tenure) -> None:
        """Record that less of a closed fragment counts than was recorded before. Raises: OSError."""
        if self._file is None:
            return
        begin, end, at_us = self.begin, self.end, self._first_append_us
        synced_to, proof = min(self.synced_to, end), self._proof(end)
        state = FragmentState(
            begin, end, self.registers, self.codec, at_us, synced_to, *proof, False
        )
        tenure.seal(self._file, state)

    def _proof(self, end: int) -> tuple[int, bytes]:
        """What is recorded of the digest: an offset, and the sum of the content below it."""
        # After a power failure the sum of content that was not on disk matches nothing, and takes the
        # content with it that was.
        proof = self._synced_proof if self._syncs else self._proved
        return proof if proof[0] <= end else (self.begin, ZERO_SUM)

    def sync(self, to: int) -> None:
        """Bring the content below an offset to the disk itself. For a thread.

        Raises: OSError: this attempt failed, or one before. The kernel reports a failure once, and takes
            what it could not write for written. So the content has to be rewritten.
        """
        file, proof = self._file, self._proved
        if file is None or self.synced_to >= to:
            return
        if self.is_doubtful:
            raise OSError(errno.EIO, "it could not be brought to disk before")
        # What counts as proved is what was digested before the call: content that is written meanwhile may or may
        # not be on disk when it returns.
        try:
            os.fdatasync(file.fd)
        except OSError:
            self.is_doubtful = True
            raise
        self.synced_to, self._synced_proof = to, proof

    def commit(
        self, end: int, *, registers: LabelSet, now: datetime, digest: Digest | None = None
    ) -> None:
        """Publish what was written up to `end`.

        Args:
            end: journal offset.
            registers: as of `end`.
            now: becomes the instant of the first append, if this is the first.
            digest: SHA-1 of all content up to `end`, made from a `digest_copy`; None: it was not made.
        """
        # Moving `end` is all that publishing is. Readers never look beyond it, so a crash between write and commit
        # leaves bytes that were reported to no one.
        if end > self.end and self.first_append_at is None:
            self.first_append_at = now
        self.end = end
        self.registers = registers
        if digest is not None:
            self._sha, self._digested_to = digest, end
            if end - self._proved[0] >= _PROVE_BYTES:
                self._proved = (end, digest.digest())

    def digest_copy(self) -> Digest:
        """A digest of the committed content, to which content that follows can be added.

        Raises: ValueError: the digest trails; call `digest_step` before.
        """
        if self._digested_to != self.end:
            raise ValueError(f"digest is at {self._digested_to}, not at {self.end}")
        return self._sha.copy()

    def digest_last(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Bring the SHA-1 up to `end` by content at hand: all that it does not cover yet."""
        for chunk in chunks:
            self._sha.update(chunk)
        self._digested_to = self.end
        if self.end - self._proved[0] >= _PROVE_BYTES:
            self._proved = (self.end, self._sha.digest())

    def digest_step(self, to: int) -> None:
        """Bring the SHA-1 up to journal offset `to`, at most `end`. Safe in a thread.

        Raises: OSError: reading back failed; call again.
        """
        file = self._file
        while file is not None and self._digested_to < to:
            block = read_block(file.fd, self._digested_to - self.begin, to - self._digested_to)
            self._sha.update(block)
            self._digested_to += len(block)
        if self._digested_to > self._proved[0]:
            self._proved = (self._digested_to, self._sha.digest())

    def compress_step(self, to: int) -> None:
        """Compress the next whole batch of the content committed before offset `to`, if there is one.

        Does nothing for replicas, which compress only if they have to persist. Safe in a thread.

        Raises: OSError: reading back or writing failed; call `stop_compressing`.
        """
        # Whole batches only, and of committed content: what is rolled back must never be in a compressed form, which
        # can only grow.
        file = self._file
        done = self._compressed.content_length if self._compressed is not None else 0
        content_to = to - self.begin
        if file is None or not self._compresses or content_to - done < COMPRESS_BATCH_BYTES:
            return
        if self._compressed is None:
            self._compressed = CompressedForm(self.codec, self._directory)
        self._compressed.step(file.fd, content_to)

    def stop_compressing(self) -> None:
        """Drop the compressed form for good: the persister makes it again."""
        self._may_compress = False
        if self._compressed is not None:
            self._compressed.file.release()
            self._compressed = None

    def complete(self) -> CompletedSpool | None:
        """Close the fragment for good; the spool must not be used any more. Safe in a thread.

        Returns: what the persister needs, or None if the fragment is empty.
        Raises: OSError: as `digest_step`; call again.
        """
        # No empty object in a store: its name would have equal begin and end, and cover nothing.
        if self.content_length == 0 or self._file is None or self.first_append_at is None:
            self.discard()
            return None
        self.digest_step(self.end)
        if self._tenure is not None and self._syncs and self.synced_to < self.end:
            with contextlib.suppress(OSError):  # the store gets it all the same
                self.sync(self.end)
                self.note_less(self._tenure)  # the sealed record was written before
        # A store may take over the file, so bytes that were rolled back after the end are cut off.
        if os.fstat(self._file.fd).st_size != self.content_length and not self._is_set_aside:
            with contextlib.suppress(OSError):  # sealed by a former process: a store copies it
                os.ftruncate(self._file.fd, self.content_length)
        compressed = self._compressed
        file, self._file, self._compressed = self._file, None, None
        return CompletedSpool(
            fragment=Fragment(self.journal, self.begin, self.end, self._sha.digest(), self.codec),
            first_append_time=self.first_append_at,
            registers=self.registers,
            is_primary=self.is_primary,
            content=file,
            compressed=compressed,
            tenure=self._tenure_id,
        )

    @property
    def _is_set_aside(self) -> bool:
        """Whether the file was set aside under another name, so that it must not be changed."""
        return self._file is not None and os.fstat(self._file.fd).st_nlink > 1

    def leave_behind(self) -> None:
        """Drop the spool, but leave its content to whoever looks for it after this process."""
        # Acknowledged content is never deleted because it cannot be read now. The next process
        # looks at it again.
        if self._file is not None:
            self._file.keep_names()
        self.discard()

    def discard(self) -> None:
        """Drop the files of a spool whose content is not needed."""
        for file in (self._file, self._compressed.file if self._compressed else None):
            if file is not None:
                file.release()
        self._file = self._compressed = None
