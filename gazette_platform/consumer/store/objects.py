"""Stores whose state is one Python object: `JSONFileStore` in a recorded file, `MemoryStore` for as long as the process.

A commit encodes or copies the whole state, so both are for little of it. `JSONFileStore` writes the form of Gazette's:
`state.json` has three lines, the offset of each source (which only the format still asks for), the state, and the
checkpoint. A commit records a write to `next.json` and its rename. Players have these files; our own disk does
not, because we have their content in memory, and a disk is sometimes slower than the log.
"""

from __future__ import annotations

import copy
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import msgspec
import orjson
from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import (
    Commits,
    ShardStore,
    all_succeeded,
    check_files,
    check_recorder,
)
from gazette_platform.errors import DataError, Fenced, StoreError, ValidationError
from gazette_platform.ops.tasks import run_in
from gazette_platform.protocol import escape_html

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.recoverylog import Recorder

_T = TypeVar("_T")
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
