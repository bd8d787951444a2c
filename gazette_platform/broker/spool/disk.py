"""Spools on a disk: files that are shared by all who hold them, folders, which disk these are on, and what a bad disk means.

A `SpoolFile` stays open until its last holder releases it: readers that stream, the open spool, and a
`CompletedSpool` on its way to the store need not know of each other. `DiskPace` says whether the event loop may
wait for small writes, and `DiskFull` is what appends fail with when there is no room.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import math
import os
import re
import stat
import struct
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from gazette_platform.codecs import compressor
from gazette_platform.protocol import CompressionCodec
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from gazette_platform.protocol import Fragment, LabelSet

# Each batch becomes one gzip member or zstd frame. A MiB compresses nearly as well as the whole would.
COMPRESS_BATCH_BYTES = 1 << 20

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that has no room, or none for us."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

# Registers make the longest of them; brokers take 256 KiB.
_SMALL_BYTES_MAX = 16 << 20

# Of statx(2): where in its answer the mask of what is known and the time of birth are.
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_STATX_MASK_AT: Final = 0
_STATX_BTIME_AT: Final = 80

# Each worker thread reads back through a buffer of its own, because allocating one costs as much as
# hashing a tenth of it.
_local = threading.local()


@final
class SpoolFile:
    """An open file, closed when its last holder releases it. If it has names, they are removed then.

    Readers hold it while they stream, the spool while it is open, and the completed spool until it
    is persisted. None of them needs to know of the others.

    Attributes:
        fd: its descriptor.
        begin: journal offset of its first byte.
        ordinal: its number if it has a name, otherwise 0.
    """

    __slots__ = ("_forget", "_holders", "begin", "fd", "ordinal")

    def __init__(
        self,
        directory: Path | None,
        begin: int,
        *,
        fd: int = -1,
        ordinal: int = 0,
        forget: Callable[[SpoolFile], None] | None = None,
    ) -> None:
        """Make a file without a name, or take over one that has names.

        Args:
            directory: of a file without a name; None: in memory.
            begin: journal offset of its first byte.
            fd: of a file that has a name, which this object owns from now on.
            ordinal: its number.
            forget: removes the names once the file is not held; called in a thread.

        Raises: OSError: the file cannot be made.
        """
        if fd < 0:
            fd = _open_unnamed(directory) if directory else os.memfd_create("gazette-spool")
        self.fd = fd
        self.begin = begin
        self.ordinal = ordinal
        self._forget = forget
        self._holders = 1

    def hold(self) -> SpoolFile:
        """Keep the file open until a matching `release`."""
        if self._holders == 0:
            raise ValueError("spool file is closed")
        self._holders += 1
        return self

    def keep_names(self) -> None:
        """Leave the names to whoever looks for the file after this process."""
        self._forget = None

    def release(self) -> None:
        """Give up one hold; the last one closes the file."""
        # A count, because readers stream from the file for minutes after the spool has let go of
        # it, and a descriptor that is reused would serve them another journal's bytes.
        self._holders -= 1
        if self._holders == 0:
            if self._forget is not None or os.fstat(self.fd).st_size > _CLOSE_INLINE_BYTES_MAX:
                _closer().submit(self._close)
            else:
                os.close(self.fd)

    def _close(self) -> None:
        try:
            if self._forget is not None:
                self._forget(self)
        finally:
            os.close(self.fd)


def finish_closing() -> None:
    """Wait until all files without holders are closed, and their names removed. For a thread."""
    _closer().submit(lambda: None).result()


def _open_unnamed(directory: Path) -> int:
    """A file without a name, so that a crash leaves no litter. A store may give it a name later."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as err:
        if err.errno not in _NO_UNNAMED_FILES:
            raise
    descriptor, path = tempfile.mkstemp(prefix=".gazette-spool-", dir=directory)
    os.unlink(path)  # noqa: PTH108
    return descriptor


# The answers of file systems that have no unnamed files.
_NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})

# Up to this size a file is closed on the event loop. To free the pages of a larger one that has no name
# takes 10 ms per 256 MiB, which readers would notice.
_CLOSE_INLINE_BYTES_MAX = 1 << 20


@functools.cache
def _closer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="gazette-spool-close")


@final
class CompressedForm:
    """The compressed form of a file's first bytes, which grows by one batch at a time.

    Attributes:
        file: the form, from position 0. It is held once, by this object.
        length: bytes of the file that are valid.
        content_length: bytes of content that they stand for.
        is_whole: whether it is a complete file of its codec, with all the content.
    """

    __slots__ = ("_stream", "codec", "content_length", "file", "is_whole", "length")

    def __init__(self, codec: CompressionCodec, directory: Path | None) -> None:
        """Begin an unnamed file in `directory`; None: in memory. Raises: OSError."""
        self.codec = codec
        self.file = SpoolFile(directory, 0)
        self.length = 0
        self.content_length = 0
        self.is_whole = False
        # With other codecs each batch is complete by itself, and no state is kept between batches.
        is_stream = codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        self._stream = compressor(codec) if is_stream else None

    def step(self, content_fd: int, to: int, *, is_last: bool = False) -> None:
        """Compress the next batch of the content before position `to`. Safe in a thread.

        Args:
            content_fd: of the content.
            to: position in it.
            is_last: whether the content ends at `to`.

        Raises: OSError: reading or writing failed, and the form is of no use any more.
        """
        make = self._stream or compressor(self.codec)
        if self.content_length < to:
            block = read_block(content_fd, self.content_length, to - self.content_length)
            self._append(make.compress(block))
            self.content_length += len(block)
        if is_last and self.content_length == to:
            self._append(make.finish())
            os.ftruncate(self.file.fd, self.length)
            self.is_whole = True

    def _append(self, data: bytes) -> None:
        write_all(self.file.fd, data, self.length)
        self.length += len(data)


def remove_fragment(path: Path) -> None:
    """Remove the content of a fragment, and the record beside it. For a thread. Raises: OSError.

    If the process ends in between, the record's new name says that the content is not needed any more:
    content without any would be taken for one that has lost its record.
    """
    # One lost record once made acknowledged content look like a draft, and the broker deleted it in
    # silence. So content without any record is kept, and this step must never leave such content.
    gone = path.with_suffix(".gone")
    with contextlib.suppress(FileNotFoundError):
        path.with_suffix(".sealed").rename(gone)
    path.unlink(missing_ok=True)
    gone.unlink(missing_ok=True)


def read_block(fd: int, at: int, limit: int) -> memoryview:
    """Up to a batch of the file's bytes, in this thread's buffer: valid until the thread's next call."""
    buffer: memoryview | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = memoryview(bytearray(COMPRESS_BATCH_BYTES))
    n = os.preadv(fd, [buffer[: min(limit, COMPRESS_BATCH_BYTES)]], at)
    if n == 0:
        raise OSError(f"spool file ends at byte {at}, before its committed content")
    return buffer[:n]


def read_small(path: Path) -> bytes:
    """All of a file that we wrote beside spools, and that anything may have taken the place of.

    Raises: OSError: it is no such file.
    """
    with open(path, "rb", opener=_open_small) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > _SMALL_BYTES_MAX:
            raise OSError(f"{path} is not a file of a spool")
        return file.read(_SMALL_BYTES_MAX)


def _open_small(path: str, flags: int) -> int:
    # A FIFO must not keep us waiting for a writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def birth_ns(fd: int) -> int:
    """When a file or folder was made, in nanoseconds since 1970; 0: the file system does not say.

    Copies of it are born later, whatever other times they keep.
    """
    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_BTIME, answer) != 0:
        return 0
    (mask,) = struct.unpack_from("=I", answer, _STATX_MASK_AT)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BTIME_AT)
    return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0


def write_all(fd: int, data: bytes, at: int) -> None:
    """Write all of `data` at a position. Raises: OSError: some of it may be written."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        at += n
        view = view[n:]


@dataclass(slots=True, eq=False, kw_only=True)
class CompletedSpool:
    """The content of a closed, non-empty fragment, with all that its place in the store depends on."""

    fragment: Fragment
    """Its span, sum and codec. It has no store and no postfix yet."""
    first_append_time: datetime
    """UTC, by this broker's clock: when its first append was committed."""
    registers: LabelSet
    is_primary: bool
    """Whether this broker was primary. The primary persists first; its replicas only look, later."""
    content: SpoolFile
    """The bytes of the fragment, from position 0."""
    compressed: CompressedForm | None = None
    """The content as far as it is compressed; None if it is not."""
    tenure: str = ""
    """Id of the tenure whose fragment it was; empty: of none, or of a former process."""
    create_revision: int = 0
    """That of the journal's spec in etcd. A journal recreated under the same name has a greater one."""
    is_stored: Callable[[int, int], bool] | None = None
    """Whether listings of its journal have all bytes from a begin to an end; None: no listing says so."""
    _is_closed: bool = field(default=False, init=False, repr=False)

    @property
    def is_closed(self) -> bool:
        """Whether it is persisted, or no longer wanted."""
        return self._is_closed

    @property
    def is_listed(self) -> bool:
        """Whether a listing has all of its content."""
        return self.is_stored is not None and self.is_stored(self.fragment.begin, self.fragment.end)

    @property
    def content_fd(self) -> int:
        """Descriptor of the content's file."""
        return self.content.fd

    def drop_compressed(self) -> None:
        """Give up the compressed form; it can be made again."""
        if self.compressed is not None:
            self.compressed.file.release()
            self.compressed = None

    def close(self) -> None:
        """Release the files. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.content.release()
        if self.compressed is not None:
            self.compressed.file.release()


SLOW_S: Final = 0.02
"""Seconds. A small write that takes longer makes a disk a slow one."""

_PAUSE_S = 1.0


@final
class DiskPace:
    """Whether the event loop may wait for small writes and reads of spools.

    The page cache takes them in microseconds, less than a hop to a thread costs. But a disk that falls
    behind makes them wait, and those of a few journals would then hold up all else, among it the renewal
    of the lease. So threads make them for a while once one was slow.

    Attributes:
        slow_until: monotonic seconds at which the event loop may wait again; threads may set it.
    """

    def __init__(self) -> None:
        self.slow_until = -math.inf

    def on_slow(self, now: float) -> None:
        """Take note that a small write took more than `SLOW_S`."""
        self.slow_until = now + _PAUSE_S


@final
class DiskFull(RpcFailed):
    """The disk of spools is full, and a fragment that can be persisted takes up room on it."""

    def __init__(self, journal: str, err: OSError) -> None:
        super().__init__(
            Code.UNAVAILABLE,
            f"{journal}: spool: {err}; what it holds is persisted to make room, append again later "
            "(and give the disk of --broker.spool-dir more room)",
        )


def not_kept(journal: str, err: OSError) -> RpcFailed:
    """What an append ends with whose commit could not be recorded."""
    return RpcFailed(
        Code.UNAVAILABLE,
        f"{journal}: spool: what is appended cannot be recorded: {err} (check --broker.spool-dir and "
        "its disk; if that folder was removed, start the broker again)",
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(folder: Path) -> None:
    """Make sure that no other user can put files there that we would take for ours. Raises: OSError."""
    info = folder.lstat()
    # `lstat`: a link would lead us to a folder that others can change.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(FOLDER_MODE)  # for example a volume that Kubernetes opens to a group


def write_new(path: Path, data: bytes, *, is_synced: bool = True) -> None:
    """Write a file in full or not at all. Raises: OSError."""
    # A rename replaces the old file at once, so that a crash leaves one or the other.
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        write_all(fd, data, 0)
        if is_synced:
            os.fsync(fd)
    finally:
        os.close(fd)
    new.rename(path)


def write_over(path: Path, data: bytes) -> None:
    """Write into an existing file, on a disk without room for another. Raises: OSError."""
    # The attempt before this one may have left a part, which takes up the last room.
    path.with_name(f"{path.name}.new").unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        write_all(fd, data.ljust(os.fstat(fd).st_size), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


_NUMBER: Final = re.compile(r"(inode|born) ([0-9]+)")
_DEVICE: Final = re.compile(r"device ([0-9]+)")


def place_of(folder_fd: int, heads_fd: int | None) -> str:
    """Where a home is, as its file `place` says: a copy of it is known by that.

        inode <n> born <ns> heads inode <n> born <ns> device <n>

    The folder and its records have other inodes and births in a copy, wherever it lies. Both stay when the disk
    is mounted again; its device does not. Restored files may lie in the original folder, so the inode of the
    folder alone proves nothing.

    Args:
        folder_fd: of the folder.
        heads_fd: of its records; None: there are none.

    Raises: OSError.
    """
    heads = "" if heads_fd is None else f" heads {_identity(heads_fd)}"
    return f"{_identity(folder_fd)}{heads} device {os.fstat(folder_fd).st_dev}"


def _identity(fd: int) -> str:
    return f"inode {os.fstat(fd).st_ino} born {birth_ns(fd)}"


def is_elsewhere(said: str, place: str, *, has_said: bool) -> bool:
    """Whether a home is not where it was made, as far as both are known.

    Births are unknown, and 0, where the system does not report them. That may change with an update.

    Args:
        said: where it was made; empty: it does not say.
        place: where it is.
        has_said: whether it did say once.
    """
    if not said:
        return has_said
    known = list(zip(_NUMBER.findall(said), _NUMBER.findall(place), strict=False))
    return not known or any(
        before != after and not (kind == "born" and "0" in (before, after))
        for (kind, before), (_, after) in known
    )


def is_on_another_device(said: str, place: str) -> bool:
    """Whether a home is not on the device that it was made on, as far as both are known.

    It may be the disk's number that is another one; or the disk is a snapshot, whose original is in use.
    """
    before, after = _DEVICE.findall(said), _DEVICE.findall(place)
    return bool(before) and before != after
