"""What a store of a shard has to do, what stores share, and the stores whose state is one Python object.

`Commits` orders commits: one is under way at a time, and each waits for the appends that it depends on.
`check_files` recognizes files of another kind of store, so that no store begins empty beside them.

`JSONFileStore` has its state in a recorded file, `MemoryStore` for as long as the process. A commit encodes or copies
the whole state, so both are for little of it. `JSONFileStore` writes the form of Gazette's:
`state.json` has three lines, the offset of each source (which only the format still asks for), the state, and the
checkpoint. A commit records a write to `next.json` and its rename. Players have these files; our own disk does
not, because we have their content in memory, and a disk is sometimes slower than the log.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, final

import msgspec
import orjson
from typing_extensions import override

from gazette_platform.client import AppendTicket
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    DependencyFailed,
    Fenced,
    GazetteError,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.ops.tasks import TaskGroup, run_in
from gazette_platform.protocol import escape_html

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.recoverylog import Recorder


def check_recorder(recorder: Recorder | None, store: str) -> None:
    """Raises: ApplicationFailed: there is none, as the shard has no recovery log."""
    if recorder is None:
        raise ApplicationFailed(
            f"a {store} keeps its files in a recovery log, and this shard has none: give its spec a "
            "recovery_log_prefix and a hint_prefix, or keep state in a SQLStore"
        )


class ShardStore(ABC):
    """State of one shard, and the checkpoint up to which it reflects what was read.

    A store with a recovery log keeps local files, and records each operation on them; it is durable,
    and fenced, as the log is. A *remote* store has no log: its database keeps state and checkpoint, and
    it fences by itself. All is called on the event loop's thread, one call at a time:

        restore_checkpoint -> (the application changes state -> start_commit)* -> destroy

    The state changes already while a commit that was started is not done yet; only the next
    `start_commit` waits for it.

    Source: Gazette's `consumer.Store`.

    Attributes:
        keeps_files: whether its state is in the files that a recorder records. If not, a log with files is refused.
    """

    keeps_files: ClassVar[bool] = True

    def follow_lease(self, lease_s: float) -> None:  # noqa: B027  to be overridden
        """Learn how long the lease of the process lasts, before the first restore.

        If the process hangs for that long, another one gets the shard. A remote store should not hold its locks
        much longer.
        """

    @abstractmethod
    async def restore_checkpoint(self) -> Checkpoint:
        """The checkpoint of the last commit; an empty one if there was none.

        Changes of state that were not committed are dropped. A remote store fences: commits of whoever
        restored before us fail from here on.

        Raises: GazetteError: there is state, and it cannot be read.
        Cancellation: safe.
        """

    @abstractmethod
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        """Commit all changes of state since the last call, and the checkpoint, at once or not at all.

        Not called before the former commit is done.

        Args:
            checkpoint: replaces the former one.
            after: appends, or other futures, which all have to succeed before anything may become
                durable. The commit fails if one of them does.

        Returns: done once the commit is durable. It fails with `Fenced` if another process has taken the
            shard over, and with another `GazetteError` if the commit is not, or may not be, durable.
        Raises: GazetteError: the commit cannot be started.
        Cancellation: of the future is none of the caller's business; commits go on.
        """

    async def roll_back(self) -> None:  # noqa: B027  to be overridden
        """Drop what is not committed: the shard has failed, and its store may still be asked.

        Called when no callback of the application runs. The store is not restored again.
        """

    @staticmethod
    def may_pass(error: Exception) -> bool:
        """Whether the shard, which failed with `error`, may succeed if it starts again soon.

        If so, its process starts it again, with growing pauses. Otherwise it stays FAILED.
        """
        return isinstance(error, StoreUnavailable)

    @abstractmethod
    async def destroy(self) -> None:
        """Give back what is held, and delete local files. Once, when the store is no longer used.

        Changes that were not committed are lost. Never raises: it logs errors, and goes on.

        Cancellation: files may stay behind.
        """


# ------------------------------------------------------------------ commits

_T = TypeVar("_T")


async def all_succeeded(after: Collection[Dependency]) -> None:
    """Wait until each of these has succeeded.

    Raises: DependencyFailed: one failed, or was cancelled. Of several, the first in their order.
    Cancellation: safe; they go on.
    """
    # One after the other, so that of several failures the caller always sees the same one.
    for need in after:
        error: BaseException | None = None
        if isinstance(need, AppendTicket):
            try:
                await need
            except GazetteError as err:
                error = err
        else:
            if not need.done():
                await asyncio.wait([need])
            # Asked for, and not raised: a cancelled future must not look as if this task had been cancelled.
            error = asyncio.CancelledError() if need.cancelled() else need.exception()
        if error is not None:
            raise DependencyFailed(
                f"nothing is committed, for what the commit was to follow has failed ({error!r}): "
                "the shard has to restart from the former one"
            ) from error


@final
class Commits:
    """The commits of one store: tasks that are known, and futures that say how they ended."""

    def __init__(self, name: str) -> None:
        """Name a store, for logs."""
        self._name = name
        self._tasks = TaskGroup(f"store {name}")
        self._is_busy = self._is_closed = False
        self._error: BaseException | None = None
        self._waiting: list[Callable[[], None]] = []

    def restored(self) -> None:
        """Forget a commit that failed: the store was restored."""
        self._error = None

    async def between(
        self, call: Callable[[], _T], *, is_ready: Callable[[], bool] = lambda: True
    ) -> _T:
        """Return what `call` returns, called once no commit is under way, before another one begins.

        Args:
            call: does not wait.
            is_ready: asked now, and when a commit has ended or `tell()` is called, until it is true, or `close` is called.

        Raises: StoreError: the last commit has failed. Exception: what `call` raises.
        Cancellation: safe.
        """
        result: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        # Called where a commit ends, and not by a task that wakes up later: the shard may start its next commit in the
        # same step, and reads would wait for ever beside a busy one.
        def attempt() -> None:
            if result.done():
                return
            waits = self._is_busy or (
                self._error is None and not self._is_closed and not is_ready()
            )
            if waits:
                self._waiting.append(attempt)
                return
            if self._error is not None:
                result.set_exception(self._failed())
                return
            try:
                result.set_result(call())
            except Exception as err:  # noqa: BLE001  the caller gets it
                result.set_exception(err)

        attempt()
        return await result

    def tell(self) -> None:
        """Attempt what waits in `between` once more."""
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            attempt()

    def _failed(self) -> StoreError:
        error = StoreError(
            f"{self._name}: its last commit has failed, so that what it has may never be committed: ask again once "
            "the shard has started again"
        )
        error.__cause__ = self._error
        return error

    def _end(self, error: BaseException | None) -> None:
        self._is_busy, self._error = False, error
        self.tell()

    def start(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Run `commit`. Returns: how it ends; to cancel the future changes nothing of the commit.

        Raises: RuntimeError: closed.
        """
        # A future beside the task: a caller that is cancelled cancels what it awaits, and a commit that was begun must
        # end in one way or the other.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_busy = True

        async def run() -> None:
            try:
                await commit()
            except Exception as err:  # noqa: BLE001  the future has it
                self._end(err)
                if not future.done():
                    future.set_exception(err)
            else:
                self._end(None)
                if not future.done():
                    future.set_result(None)

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self._end(asyncio.CancelledError())
            if not future.done():  # it was cancelled, maybe before it had begun
                future.set_exception(
                    StoreError(
                        f"{self._name}: the store was destroyed before its commit was done, which may be "
                        "durable or not: go on with what the next owner restores"
                    )
                )
                future.exception()  # the waiter may have gone

        self._tasks.spawn(run(), name="commit").add_done_callback(ended)
        return future

    async def close(self) -> None:
        """End the commit that is under way, if any, and take no more. Its future fails. What waits is made."""
        await self._tasks.close()
        self._is_closed = True
        self.tell()


# ------------------------------------------------------------------ names of files

_GAZETTES: Final = "SQLite store of Gazette's Go consumers"

# Whole names, of all that each store and its engine may write: an unknown name beside them is the application's.
_FILES: Final = {
    "SQLiteStore": re.compile(r"primary\.db.*"),
    "JSONFileStore": re.compile(r"(state|next)\.json"),
    "RocksDBStore": re.compile(
        r"(CURRENT|MANIFEST-\d+)(\.next)?|IDENTITY|LOCK|LOG(\.old\..*)?|OPTIONS-.*|\d+\.(sst|blob|log|dbtmp)"
    ),
    _GAZETTES: re.compile(r"pageDB"),
}

_NAMED_MAX: Final = 4


def check_files(directory: str | Path, store: str) -> None:
    """Check that what a recovery log gave is of a kind of store, before that opens it.

    An application may record files of its own beside those of its store.

    Raises: DataError: another store wrote the files. The shard would consume and publish everything again.
        OSError: the directory cannot be read.
    """
    # Names with a leading dot are this process's own: staged files, and snapshots of RocksDB.
    names = sorted(each.name for each in Path(directory).iterdir() if each.name[0] != ".")
    foreign = [name for name in names if not _FILES[store].fullmatch(name)]
    looks = [kind for kind, files in _FILES.items() if any(map(files.fullmatch, foreign))]
    # Files that no store is known to write are the application's, if files of this store exist as well.
    if not foreign or (not looks and len(foreign) < len(names)):
        return
    named = ", ".join(foreign[:_NAMED_MAX]) + (", …" if len(foreign) > _NAMED_MAX else "")
    told = f"They look like those of a {' and a '.join(looks)}. " if looks else ""
    raise DataError(
        f"{directory} has files that a {store} does not write ({named}). {told}With a {store} the shard would "
        "begin with empty state, and publish everything again. Open the store that wrote them, or give the "
        "shard another recovery_log_prefix and hint_prefix to restart it"
    )


_R = TypeVar("_R")

_log = logging.getLogger(__name__)

_STATE: Final = "state.json"
_NEXT: Final = "next.json"

_LINES: Final = 3

_PIECE_BYTES: Final = 1 << 20
"""Bytes of one write in the log: large for the frame around it, small for what may wait at once."""


@final
class JSONFileStore(ShardStore, Generic[_T]):
    """State that is one value; each commit records all of it.

    For state of at most some megabytes: the log grows by its size with every commit, though only the
    last one is ever played. What was committed comes back as JSON has it: of a plain dict, keys are texts
    and tuples are lists; name a `kind` to have other types.

    Attributes:
        state: what the application changes, uncommitted changes included. It may be replaced. Another object
            after each restore. Pages and other calls ask by `read`.
    """

    def __init__(self, recorder: Recorder, state: _T, *, kind: Any = None) -> None:
        """Make a store of the files that a recorder goes on with.

        Args:
            recorder: of a directory that has nothing but these files.
            state: what a shard begins with: a dict, a list, a dataclass, a `msgspec.Struct` …, anything
                that msgspec writes as JSON.
            kind: type to read it as, such as ``dict[str, Count]``; by default that of `state`.

        Raises: ValidationError: the state cannot be written as JSON, or not be read as that type.
        """
        check_recorder(recorder, "JSONFileStore")
        self._recorder = recorder
        self._directory = Path(recorder.directory)
        self._path, self._next_path = (str(self._directory / each) for each in (_STATE, _NEXT))
        # Kept in memory, and not on disk: only whoever plays the log reads the file, and writing it as well would make
        # commits wait for the disk. None: as it was played.
        self._committed = b""
        self._content: bytes | None = None
        self._decoder: msgspec.json.Decoder[_T]
        try:
            self._decoder = msgspec.json.Decoder(type(state) if kind is None else kind)
            self._initial = msgspec.json.encode(state)
            self._decoder.decode(self._initial)
            self._committed = self._initial
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as err:
            raise ValidationError(
                f"{recorder.log}: state of type {type(state).__name__} is not JSON ({err}): make it of types "
                "that msgspec knows, or name a `kind`",
                path="state",
            ) from err
        self.state = state
        self._commits = Commits(recorder.log)
        self._disk = ThreadPoolExecutor(1, f"store {recorder.log}")

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        path, content = self._path, self._content
        if content is None:
            try:
                await run_in(self._disk, check_files, self._directory, "JSONFileStore")
                content = await run_in(self._disk, Path(path).read_bytes)
            except FileNotFoundError:  # nothing was ever committed
                await self.roll_back()
                return Checkpoint()
            except OSError as err:
                raise StoreError(f"{path} cannot be read: {err}") from err
        lines = content.split(b"\n")
        if len(lines) != _LINES + 1 or lines[-1]:
            raise DataError(
                f"{path}: expected {_LINES} lines, of offsets, state and checkpoint, and found "
                f"{len(lines) - 1} in {len(content)} bytes: is the log that of another store?"
            )
        try:
            checkpoint = Checkpoint.from_json(orjson.loads(lines[2]) or {})
            self.state = self._decoder.decode(lines[1])
            self._committed = lines[1]
        except (ValueError, msgspec.MsgspecError) as err:
            raise DataError(
                f"{path}: a line cannot be read ({err}): was it written by another version of the "
                "application?"
            ) from err
        return checkpoint

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        # Encoded before this returns: the next transaction changes the state while the commit goes on.
        content = self._documents(checkpoint)
        self._recorder.gate(after)
        return self._commits.start(lambda: self._commit(content))

    async def read(self, call: Callable[[_T], _R]) -> _R:
        """Return what ``call(state)`` returns, of the state as it was committed: a copy.

        Raises: Exception: what `call` raises. Cancellation: safe.
        """
        return call(self._decoder.decode(self._committed))

    @override
    async def roll_back(self) -> None:
        # Decoded again, rather than kept as objects: the application may have changed any part of them.
        self.state = self._decoder.decode(self._committed)

    def _documents(self, checkpoint: Checkpoint) -> bytes:
        """The file's content. Raises: ValidationError: the state is no longer JSON."""
        try:
            state = msgspec.json.encode(self.state)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as err:
            raise ValidationError(
                f"{self._recorder.log}: the state cannot be written as JSON: {err}", path="state"
            ) from err
        offsets = _go_json(dict(sorted(checkpoint.read_through.items())))
        return b"".join((offsets, escape_html(state), b"\n", _go_json(checkpoint.json())))

    async def _commit(self, content: bytes) -> None:
        # By another name first: a player that stops within the writes has the former file, and ignores this one.
        recorder = self._recorder
        fnode, view = recorder.create(self._next_path), memoryview(content)
        for begin in range(0, len(content), _PIECE_BYTES):
            await recorder.room()
            recorder.write(fnode, begin, view[begin : begin + _PIECE_BYTES])
        recorder.rename(self._next_path, self._path)
        await recorder.barrier()
        self._content, self._committed = content, content.split(b"\n", 2)[1]

    @override
    async def destroy(self) -> None:
        await self._commits.close()
        try:
            await run_in(self._disk, shutil.rmtree, self._directory)
        except OSError as err:
            _log.warning("%s: files of a store are left behind: %s", self._directory, err)
        self._disk.shutdown(wait=False)


def _go_json(document: Any) -> bytes:
    return escape_html(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


@dataclass(slots=True)
class _Memory:
    """What one shard has committed."""

    state: Any
    checkpoint: Checkpoint
    fence: int = 0
    """How often it was restored."""


@final
class Memories:
    """What memory stores have committed, by shard, for as long as this object lives.

    Hand one to all stores of a process, or of a test, and a shard goes on where it was. Of one event loop.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._kept: dict[str, _Memory] = {}

    def restored(self, shard: str, state: Any) -> _Memory:
        """The memory of a shard, which begins with `state`; whoever restored it before us is fenced."""
        kept = self._kept.get(shard)
        if kept is None:
            kept = self._kept[shard] = _Memory(state, Checkpoint())
        # As in a database: each restore raises the number, and a commit that began under a lower one fails.
        kept.fence += 1
        return kept


@final
class MemoryStore(ShardStore, Generic[_T]):
    """State that is an object, and is gone with the process.

    Without `kept` a new store begins empty: its shard reads from the beginning, or the `min_offset` of its
    spec. With it a shard goes on where the process had it, and stores fence each other as a database's do.
    A commit copies the state deeply: one that is to be large needs another store. None costs nothing.

    Attributes:
        state: what the application changes. It may be replaced. Another object after each restore.
    """

    keeps_files = False

    def __init__(self, state: _T, *, shard: str = "", kept: Memories | None = None) -> None:
        """Make a store.

        Args:
            state: what a shard begins with, of any kind that `copy.deepcopy` copies.
            shard: who is restored from `kept`.
            kept: what is to outlive the store.

        Raises: ValidationError: `kept` without a shard.
        """
        if kept is not None and not shard:
            raise ValidationError(
                "expected the name of a shard, as memories are kept", path="shard"
            )
        self.state = state
        self._initial = copy.deepcopy(state)
        self._shard = shard
        self._kept = Memories() if kept is None else kept
        self._fence = 0
        self._memory: _Memory | None = None
        self._commits = Commits(shard or "in memory")

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        memory = self._memory = self._kept.restored(self._shard, self._initial)
        self._fence = memory.fence
        self.state = copy.deepcopy(memory.state)
        return memory.checkpoint

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        # Copied at once: the next transaction changes the state while this commit waits.
        memory, fence, state = self._memory, self._fence, copy.deepcopy(self.state)
        if memory is None:
            raise ValidationError(f"{self._shard}: nothing is committed before it was restored")

        async def commit() -> None:
            await all_succeeded(after)
            if memory.fence != fence:
                raise Fenced(
                    f"{self._shard}: another store of this process has restored the shard (stop this one; "
                    "nothing that it commits is kept any more)"
                )
            memory.state, memory.checkpoint = state, checkpoint

        return self._commits.start(commit)

    async def read(self, call: Callable[[_T], _R]) -> _R:
        """Return what ``call(state)`` returns, of the state as it was committed, which `call` may not change.

        Raises: Exception: what `call` raises. Cancellation: safe.
        """
        return call(self._initial if self._memory is None else self._memory.state)

    @override
    async def roll_back(self) -> None:
        if self._memory is not None:
            self.state = copy.deepcopy(self._memory.state)

    @override
    async def destroy(self) -> None:
        await self._commits.close()
