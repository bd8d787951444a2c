"""The files of spools, shared by all who hold them, and their compression in batches."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
import struct
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from gazette_platform.codecs import compressor
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "COMPRESS_BATCH_BYTES",
    "FULL",
    "CompressedForm",
    "SpoolFile",
    "birth_ns",
    "finish_closing",
    "read_block",
    "read_small",
    "write_all",
]

# Each batch becomes one gzip member or zstd frame. A MiB compresses nearly as well as the whole would.
COMPRESS_BATCH_BYTES = 1 << 20

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that has no room, or none for us."""

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
