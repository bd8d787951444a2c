"""The ``file`` store: a directory, shared or not, with the layout of an object store.

Our own driver, because engines read the directory while brokers write: an object appears under its
name by a rename, whole and synced to disk. While being written it is in a folder of the store's root: engines
hide its name, and no listing of a journal comes there. Brokers of Gazette's would warn of any name below a
journal that is not a fragment's. A spool on the same file system is not copied: its file gets the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import tempfile
import threading
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, final
from urllib.parse import quote

from gazette_platform.errors import (
    AccessDenied,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.stores.interface import PIECE_BYTES, KeyRule, StoredObject, take_args

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from concurrent.futures import Executor

    from gazette_platform.protocol import StoreUrl


_P = ParamSpec("_P")
_T = TypeVar("_T")

_DIRECTORY_MODE = 0o750
_FILE_MODE = 0o640
_MAY_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_PARTIAL_FOLDER: Final = ".partial"
# Beside the object, where that folder is on another file system.
_PARTIAL_PREFIX: Final = ".partial-"
_COPY_BYTES_MAX = 8 * 1024 * 1024
_LIST_BATCH = 512

# The longest folder of fragments: a journal's name, a slash, a path postfix, a slash.
_DIRECTORY_LENGTH_MAX = 512 + 1 + 512 + 1

# Characters that stand for themselves in the path of a URL; `%` and `?` must not.
_URL_SAFE: Final = "/!$&'()*+,;=:@-._~"


@final
class FileStore:
    """Objects as files below ``<file root>/<path of the URL>``."""

    def __init__(
        self, url: StoreUrl, *, file_root: Path, executor: Executor, makes_folder: bool = True
    ) -> None:
        """Take the arguments of `url`; touches no disk.

        Args:
            file_root: directory that must exist whenever an object is put.
            executor: bounded pool of threads for blocking calls.
            makes_folder: whether the folder of the URL, below the root, need not.

        Raises: ValidationError: the URL has arguments that this store does not know.
        """
        self._url = url.text
        self._rule = KeyRule.of(url.prefix.lstrip("/"), take_args(url, frozenset()))
        self._root = file_root
        folder = file_root / self._rule.prefix
        self._needs = file_root if makes_folder else folder
        self._partials = folder / _PARTIAL_FOLDER
        self._executor = executor

    @property
    def url(self) -> str:
        """The store's URL, exactly as specs have it."""
        return self._url

    async def exists(self, path: str) -> bool:
        """Whether the object exists. Cancellation: safe."""
        return await self._run(_is_file, self.local_path(path))

    async def get(
        self, path: str, *, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """The stored bytes in pieces; see `FragmentStore.get`."""
        fd = await self._run(_open_to_read, self.local_path(path))
        try:
            offset = 0
            while piece := await self._run(os.pread, fd, piece_bytes, offset):
                yield piece
                offset += len(piece)
        finally:
            # A thread that still reads for a cancelled call reads nothing that anybody sees.
            os.close(fd)

    async def put(
        self,
        path: str,
        fd: int,
        length: int,
        *,
        content_encoding: str = "",  # noqa: ARG002  a file has no headers
    ) -> None:
        """Store the first `length` bytes of `fd`; see `FragmentStore.put`."""
        target = self.local_path(path)
        # The thread's own descriptor: a cancelled caller closes its own while the thread copies,
        # and the number may be given to another file at once.
        own_fd = os.dup(fd)
        is_cancelled = threading.Event()
        future = self._executor.submit(partial(self._put, target, own_fd, length, is_cancelled))
        future.add_done_callback(lambda _: os.close(own_fd))
        try:
            with _store_errors():
                await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    def _put(
        self, target: Path, source_fd: int, length: int, is_cancelled: threading.Event
    ) -> None:
        # Not made: a root that is missing is more often a mount that is, and an unmounted directory
        # would take fragments that are never found again.
        _check_root(self._needs)
        _make_directories(target.parent)
        self._partials.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        hidden = self._partials / target.name
        try:
            _put_by_way_of(hidden, target, source_fd, length, is_cancelled)
        except OSError as err:
            if err.errno != errno.EXDEV:
                raise
            beside = target.with_name(f"{_PARTIAL_PREFIX}{target.name}")
            _put_by_way_of(beside, target, source_fd, length, is_cancelled)
        _sync_directory(target.parent)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below a directory; see `FragmentStore.list`."""
        if prefix and not prefix.endswith("/"):
            raise StoreError(f"prefix {prefix!r} of a listing must end with '/'")
        walk = _walk_of(self._root, self.local_path(prefix))
        while batch := await self._run(_take, walk):
            for item in batch:
                yield item

    async def remove(self, path: str) -> None:
        """Delete the object; see `FragmentStore.remove`."""
        await self._run(self.local_path(path).unlink)

    async def sign_get(
        self,
        path: str,
        ttl_s: float,  # noqa: ARG002  files need no signature
    ) -> str:
        """A ``file`` URL below the file root, which the reader must know: it is not signed."""
        with _store_errors():
            return "file:///" + quote(self._rule.key(path), safe=_URL_SAFE)

    def local_path(self, path: str) -> Path:
        """Where the object lies."""
        return self._root / self._rule.key(path)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        loop = asyncio.get_running_loop()
        with _store_errors():
            return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Errors of the operating system as errors of a store."""
    try:
        yield
    except FileNotFoundError as err:
        raise ObjectNotFound(f"no such object: {err.filename}") from err
    except PermissionError as err:
        raise AccessDenied(f"{err} (give the broker's user access to the directory)") from err
    except OSError as err:
        raise StoreUnavailable(f"file store: {err}") from err
    except ValueError as err:  # a name that cannot be one, such as with a NUL
        raise StoreError(f"file store: {err}") from err


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _open_to_read(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(0, "not a file", str(path))
    return fd


def _put_by_way_of(
    partial: Path, target: Path, source_fd: int, length: int, is_cancelled: threading.Event
) -> None:
    """Write the object under a name like `partial`, then rename it."""
    written = _link(source_fd, length, partial) or _write(source_fd, length, partial, is_cancelled)
    try:
        written.rename(target)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def _link(source_fd: int, length: int, partial: Path) -> Path | None:
    """Give a file a name like `partial`, if no process may write to it any more.

    Either it has no name, or one, and no mode that lets another user open it to write: so its owner
    says that it is done with it.

    Returns: None if that cannot be: it may change, holds more, or lies on another file system.
    """
    info = os.fstat(source_fd)
    is_done = info.st_nlink == 0 or (info.st_nlink == 1 and not info.st_mode & _MAY_WRITE)
    if not is_done or info.st_size != length:
        return None
    partial = partial.with_name(f"{partial.name}.{secrets.token_hex(4)}")
    try:
        # The directory is of no use to an absolute path: it makes Python follow the symbolic link.
        os.link(f"/proc/self/fd/{source_fd}", partial, src_dir_fd=source_fd, follow_symlinks=True)
    except OSError:
        return None
    try:
        os.fchmod(source_fd, _FILE_MODE)
        os.utime(source_fd)  # the object's time is that of its name
        os.fsync(source_fd)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _write(source_fd: int, length: int, partial: Path, is_cancelled: threading.Event) -> Path:
    """Copy the content to a new file of a name like `partial`."""
    partial_fd, partial_name = tempfile.mkstemp(prefix=f"{partial.name}.", dir=partial.parent)
    try:
        try:
            os.fchmod(partial_fd, _FILE_MODE)
            _copy(source_fd, partial_fd, length, is_cancelled)
            os.fsync(partial_fd)
        finally:
            os.close(partial_fd)
    except BaseException:
        Path(partial_name).unlink(missing_ok=True)
        raise
    return Path(partial_name)


def _make_directories(directory: Path) -> None:
    """Create what is missing of the path, so that it survives a crash."""
    missing: list[Path] = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source_fd: int, target_fd: int, length: int, is_cancelled: threading.Event) -> None:
    """Copy the first `length` bytes, in the kernel where it can."""
    offset = 0
    while offset < length:
        if is_cancelled.is_set():
            raise StoreUnavailable("put was cancelled")
        count = os.sendfile(target_fd, source_fd, offset, min(length - offset, _COPY_BYTES_MAX))
        if count == 0:
            raise DataError(f"content ends at byte {offset}, {length} were to be stored")
        offset += count


def _take(walk: Iterator[StoredObject]) -> list[StoredObject]:
    return list(islice(walk, _LIST_BATCH))


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise AccessDenied(f"invalid file store directory {root} (create or mount it)")


def _walk_of(root: Path, directory: Path) -> Iterator[StoredObject]:
    """Regular files below a directory of the store.

    A directory that is not there holds nothing, but a root that is not there says nothing of what
    the store holds: taken for an empty store, indexes would forget all of it. It is looked at
    before and after, since it may go in the middle.
    """
    _check_root(root)
    yield from _walk(directory)
    _check_root(root)


def _walk(directory: Path) -> Iterator[StoredObject]:
    """Regular files below `directory`, ordered by path as an object store orders keys.

    It does not recurse: others may have made folders that are deeper than the interpreter's stack.
    """
    walks = [_entries(f"{directory}/", "")]
    while walks:
        relative, entry = next(walks[-1], (None, None))
        if relative is None or entry is None:
            walks.pop()
        elif relative.endswith("/"):
            if len(relative) <= _DIRECTORY_LENGTH_MAX:
                walks.append(_entries(f"{directory}/{relative}", relative))
        else:
            try:
                info = entry.stat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(info.st_mode):
                yield StoredObject(relative, int(info.st_mtime), info.st_size)


def _entries(directory: str, relative: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What a directory holds, ordered: relative paths, those of directories with a slash."""
    try:
        with os.scandir(directory) as scan:
            entries = [entry for entry in scan if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return iter(())  # never made, or removed meanwhile
    return iter(
        sorted(
            (
                (relative + entry.name + "/" * entry.is_dir(follow_symlinks=False), entry)
                for entry in entries
            ),
            key=itemgetter(0),
        )
    )
