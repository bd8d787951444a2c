"""Files of fragment stores, as this process reaches them: list, size, range read, copy, delete.

Synchronous, over the drivers of brokers. A store is a folder of this machine where its location, as
engines know it, is one; else it is asked by its URL, with the credentials that AWS and other tools of
this process would find. Paths are those that brokers use: ``<journal>/<postfix>/<name>``.

A store that does not answer costs one wait, and then none for a minute: a tick has others to see to.

A copy within an object store does not report its progress, and one between stores may be of gigabytes. So it runs on its own
thread, with its own deadline, and may outlast the tick that began it: a later tick waits for the same copy, or finds it done.

`Cutover` copies fragments of an hour in which their journal changed its store. A Hive partition has one location. If a
journal goes over to another store in the middle of an hour, the fragments after that point lie in the same directory of the
other store, where engines do not look. They are copied beside the others, under their own names: brokers that still list the
first store see the same fragment twice and use one. Nothing is moved or deleted. The fragments of later hours are registered
in the new store.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, final

from gazette_platform.errors import (
    AccessDenied,
    GazetteError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.lake.spec.layout import directory_of, is_same_location, require_location
from gazette_platform.ops.tasks import LoopThread, next_or_none
from gazette_platform.stores import ServerSideStore, StoredObject, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.protocol import Fragment
    from gazette_platform.stores import FragmentStore

# Each may hold a file of temporary content.
_COPIES_MAX: Final = 4

_lock = threading.Lock()
_running: dict[tuple[str, str], concurrent.futures.Future[None]] = {}


def copy_within(key: tuple[str, str], work: Callable[[], None], seconds: float) -> None:
    """Have `work` done, or begun.

    Args:
        key: store and path of the target: of the same one there is only one copy at a time.
        work: the copy; it ends by a deadline of its own.
        seconds: to wait for it.

    Raises: StoreUnavailable: it is not done yet, and goes on; or too many are. What `work` raises.
    """
    with _lock:
        future = _running.get(key)
        if future is None:
            if len(_running) >= _COPIES_MAX:
                raise StoreUnavailable(
                    f"{key[1]} is not copied yet, because {_COPIES_MAX} other files are being copied; it is "
                    "tried again"
                )
            future = _running[key] = concurrent.futures.Future()
            # Of no worth without its process: a copy in part is seen by its size.
            threading.Thread(
                target=_run, args=(key, work, future), name="gazette-copy", daemon=True
            ).start()
    try:
        future.result(seconds)
    except concurrent.futures.TimeoutError as err:
        if future.done():
            raise  # it is that of `work`
        raise StoreUnavailable(
            f"{key[1]} is still being copied after {seconds:.0f} s, which goes on; it is looked at again"
        ) from err


def _run(
    key: tuple[str, str], work: Callable[[], None], future: concurrent.futures.Future[None]
) -> None:
    error: BaseException | None = None
    try:
        work()
    except BaseException as err:  # noqa: BLE001  whoever waits is to get it
        error = err
    with _lock:
        _running.pop(key, None)
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


_T = TypeVar("_T")

HIDDEN: Final = (".", "_")
"""What the names of files that engines do not see begin with."""
_READ_BYTES: Final = 1 << 20
# Of one answer, which is a part of 8 MiB at most. A tick begins nothing after 25 s, and Dagster gives up on it
# after 60: one such wait, and one for brokers in the store's place, must fit in between.
_STEP_TIMEOUT_S: Final = 12.0
# Of a copy, which on some stores passes through this process; and what is waited for it at once.
_COPY_TIMEOUT_S: Final = 900.0
_COPY_PATIENCE_S: Final = 12.0
# In one folder; a listing of more would not fit into a tick anyway.
_LISTED_MAX: Final = 200_000
_STORES_MAX: Final = 64
_AWAY_S: Final = 60.0


@final
class StoreFiles:
    """The files of one store.

    Every operation raises a `StoreError`: `ObjectNotFound`, `AccessDenied` or `StoreUnavailable`.

    Args:
        driver: of the store, or of a folder.
        place: from a path to that of the driver.
    """

    def __init__(self, driver: FragmentStore, place: Callable[[str], str]) -> None:
        self._driver = driver
        self._place = place
        self._away_until_s = 0.0
        # Whether the last question had no answer at all; a refusal is one.
        self._is_silent = False

    @property
    def is_local(self) -> bool:
        """Whether they lie in a folder of this machine."""
        return self._driver.local_path("") is not None

    @property
    def is_away(self) -> bool:
        """Whether the store did not serve this process within the last minute."""
        return time.monotonic() < self._away_until_s

    def note_away(self) -> None:
        """Make `is_away` true for a minute."""
        self._away_until_s = time.monotonic() + _AWAY_S

    def _wait(self, coro: Coroutine[Any, Any, _T]) -> _T:
        """What `coro` gives; a store that did not answer is not waited for again at once.

        Raises: StoreUnavailable: it does not answer. What `coro` raises.
        """
        if self._is_silent and self.is_away:
            coro.close()
            raise StoreUnavailable(
                f"{self._driver.url} did not answer within {_STEP_TIMEOUT_S:.0f} s a moment ago; it is asked "
                "again in a minute"
            )
        self._is_silent = False
        try:
            return _wait(coro)
        except _NoAnswer as err:
            self._is_silent = True
            self.note_away()
            raise StoreUnavailable(f"{self._driver.url}: {err}") from err

    def list(self, directory: str) -> list[StoredObject]:
        """Visible files right in `directory`; `path` is the name. A missing one has none.

        Objects without content, such as those that stand for folders, are left out on object stores.
        """
        found: list[StoredObject] = []
        listing = self._driver.list(self._place(f"{directory}/"))
        while (item := self._wait(next_or_none(listing))) is not None:
            if "/" in item.path or item.path.startswith(HIDDEN):
                continue
            found.append(item)
            if len(found) > _LISTED_MAX:
                raise StoreError(
                    f"{directory} of {self._driver.url} holds more than {_LISTED_MAX} files: give "
                    "the journal a path postfix, such as date and hour"
                )
        return found

    def size(self, path: str) -> int:
        """Stored bytes of a file."""
        place = self._place(path)
        local = self._driver.local_path(place)
        if local is not None:
            with _local_errors():
                return local.stat().st_size
        if isinstance(self._driver, ServerSideStore):
            return self._wait(self._driver.size(place))
        directory, _, name = path.rpartition("/")
        for item in self.list(directory):
            if item.path == name:
                return item.size
        raise ObjectNotFound(f"{path} is not in {self._driver.url}")

    def read(self, path: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Stored bytes [begin, end) in pieces of about a MiB; `end` None: all that follow."""
        place = self._place(path)
        local = self._driver.local_path(place)
        if local is not None:
            yield from _read_local(local, begin, end)
            return
        if end is not None and isinstance(self._driver, ServerSideStore):
            pieces, at = self._driver.get_range(place, begin, end), begin
        else:
            pieces, at = self._driver.get(place), 0
        try:
            while (end is None or at < end) and (
                piece := self._wait(next_or_none(pieces))
            ) is not None:
                wanted = piece[max(0, begin - at) : None if end is None else end - at]
                at += len(piece)
                if wanted:
                    yield wanted
        finally:
            with contextlib.suppress(StoreUnavailable):
                self._wait(pieces.aclose())

    def copy(self, path: str, target: str) -> None:
        """Give a file a second path. What `target` was, is replaced. What takes long goes on by itself."""
        copy_within(
            (self._driver.url, self._place(target)),
            lambda: self._copy(path, target),
            _COPY_PATIENCE_S,
        )

    def _copy(self, path: str, target: str) -> None:
        source, place = self._place(path), self._place(target)
        if isinstance(self._driver, ServerSideStore):
            _wait(self._driver.copy(source, place), _COPY_TIMEOUT_S)
            return
        with tempfile.TemporaryFile(buffering=0) as file:
            for piece in self.read(path):
                file.write(piece)
            _wait(self._driver.put(place, file.fileno(), file.tell()), _COPY_TIMEOUT_S)

    def take(self, source: StoreFiles, path: str) -> None:
        """Copy a file of `source` to the same path here. An existing file is replaced.

        What takes long goes on by itself.
        """
        copy_within(
            (self._driver.url, self._place(path)),
            lambda: self._take(source, path),
            _COPY_PATIENCE_S,
        )

    def _take(self, source: StoreFiles, path: str) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            for piece in source.read(path):
                file.write(piece)
            put = self._driver.put(self._place(path), file.fileno(), file.tell())
            _wait(put, _COPY_TIMEOUT_S)

    def write(self, path: str, content: bytes) -> None:
        """Write a small file, whole or not at all. An existing file is replaced."""
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(content)
            _wait(self._driver.put(self._place(path), file.fileno(), len(content)))

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._wait(self._driver.remove(self._place(path)))

    def move(self, path: str, target: str) -> None:
        """Give a file another path, at which nothing is: at once in a folder, else by a copy.

        If it ends in the middle there are both. The copy is looked at before the file is removed.
        """
        local = self.local_path(path)
        moved = self.local_path(target)
        if local is not None and moved is not None:
            with _local_errors():
                moved.parent.mkdir(parents=True, exist_ok=True)
                local.rename(moved)
            return
        # A copy that another attempt began may exist by now; its size shows it.
        if not (self.exists(target) and self.size(target) == self.size(path)):
            self.copy(path, target)
        if self.size(target) != self.size(path):
            raise StoreUnavailable(
                f"the copy of {path} at {target} has another size; both are kept"
            )
        self.remove(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._wait(self._driver.exists(self._place(path)))

    def local_path(self, path: str) -> Path | None:
        """Where a file is on this machine, or None if its store is not a folder."""
        return self._driver.local_path(self._place(path))

    def text(self, path: str) -> str:
        """Where a file is, for people."""
        local = self.local_path(path)
        return str(local) if local is not None else f"{path} of {self._driver.url}"

    def check_movable(self, path: str) -> None:
        """Refuse what can be known not to be movable, before any work is done.

        Raises: AccessDenied: names the folder.
        """
        local = self.local_path(path)
        if local is not None and not os.access(local.parent, os.W_OK):
            raise AccessDenied(f"{local.parent} is not writable for this process")


@final
class Storage:
    """The stores of journals.

    Args:
        roots: where they lie for engines.
    """

    def __init__(self, roots: StoreRoots) -> None:
        self._roots = roots

    def is_local(self, store: str) -> bool:
        """Whether the store is a folder of this machine. Raises: LakeError: as `files`."""
        return self._roots.location(store, "").startswith("file:")

    def files(self, store: str) -> StoreFiles:
        """The files of the fragment store `store`. Asks it nothing.

        Raises: LakeError: a file store that no root maps. StoreError: this process lacks what its
            scheme needs.
        """
        base = self._roots.location(store, "")
        if not base.startswith("file:"):
            return object_files(store)
        # Locations hold paths as they are: engines and brokers do not percent-encode them.
        folder = base.removeprefix("file:").rstrip("/")

        def place(path: str) -> str:
            directory, slash, name = path.rpartition("/")
            location = self._roots.location(store, directory).removeprefix("file://")
            return f"{location.removeprefix('/' + folder.lstrip('/'))}{slash}{name}".lstrip("/")

        driver = open_store("file:///", file_root=Path(f"/{folder.lstrip('/')}"))
        return StoreFiles(driver, place)


@lru_cache(_STORES_MAX)
def object_files(store: str) -> StoreFiles:
    """The files of a store that is not a folder; shared by all callers, with its connections."""
    return StoreFiles(open_store(store, file_root=None), lambda path: path)


@final
class Cutover:
    """Copies fragments between the stores of their journals.

    Args:
        storage: reaches the files.
        roots: where stores lie for engines.
        stores: URLs of the stores in each journal's spec.
    """

    def __init__(
        self, storage: Storage, roots: StoreRoots, stores: Mapping[str, Sequence[str]]
    ) -> None:
        self._storage = storage
        self._roots = roots
        self._stores = stores

    def bring(self, table: str, key: str, fragment: Fragment, location: str) -> None:
        """Have the file of `fragment` at `location`, that of its Hive partition. Idempotent.

        Args:
            table: its name, for messages.
            key: of the Hive partition, for messages.

        Raises: PartitionConflict: no store of the journal has its directory there. StoreError: the
            file cannot be copied; it is tried again.
        """
        directory = directory_of(fragment)
        found = self._roots.location(fragment.backing_store, directory)
        if is_same_location(found, location):
            return
        target = self._store_at(fragment, directory, location)
        if target is None:
            require_location(table, key, location, found)
            return
        path = fragment.content_path
        source = self._storage.files(fragment.backing_store)
        size = source.size(path)
        if target.exists(path) and target.size(path) == size:
            return
        target.take(source, path)
        if target.size(path) != size:
            raise StoreError(
                f"the copy of {path} at {location} has another size; it is tried again"
            )

    def _store_at(self, fragment: Fragment, directory: str, location: str) -> StoreFiles | None:
        for store in self._stores.get(fragment.journal, ()):
            try:
                place = self._roots.location(store, directory)
            except GazetteError:
                continue  # a folder that only brokers know
            if is_same_location(place, location):
                return self._storage.files(store)
        return None


def _read_local(path: Path, begin: int, end: int | None) -> Iterator[bytes]:
    with _local_errors(), path.open("rb", buffering=0) as file:
        file.seek(begin)
        left = end - begin if end is not None else None
        while piece := file.read(_READ_BYTES if left is None else min(_READ_BYTES, left)):
            left = None if left is None else left - len(piece)
            yield piece


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as err:
        raise ObjectNotFound(f"there is no file {err.filename}") from err
    except PermissionError as err:
        raise AccessDenied(f"{err.filename}: {err.strerror}") from err
    except OSError as err:
        raise StoreUnavailable(f"{err.filename}: {err.strerror}") from err


_loop: LoopThread | None = None
_loop_lock = threading.Lock()


class _NoAnswer(StoreUnavailable):
    """A step took longer than it may."""


def _wait(coro: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
    """What `coro` gives, on the event loop of all stores of this process.

    Raises: _NoAnswer: it took longer. What `coro` raises.
    """
    global _loop  # noqa: PLW0603  made when first needed, and again in a fork
    with _loop_lock:
        if _loop is None or _loop.is_closed:
            _loop = LoopThread("gazette-lake-stores")
        loop = _loop
    timeout_s = _STEP_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        return loop.run(asyncio.wait_for(coro, timeout_s))
    except TimeoutError as err:
        raise _NoAnswer(f"the store did not answer within {timeout_s:.0f} s") from err
