"""What journals hold when all is over: by the cluster, by each replica, and by the store alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, Literal, final

import grpc
import grpc.aio

from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    GazetteError,
    ValidationError,
)
from gazette_platform.protocol.fragments import parse_fragment_path
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.testing.waiting import pass_time, patient
from tests.checker.recording import RecordingClient
from tests.harness import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gazette_platform.client import AsyncClient
    from gazette_platform.protocol import Fragment
    from tests.chaos.scene import Scene

_STEP_BYTES = 1 << 20


def stored_fragments(root: Path, journal: str) -> list[tuple[Fragment, Path]]:
    """The fragments of a journal in the store at `root`, by offset. Raises: OSError."""
    folder = root / journal
    if not folder.exists():
        root.stat()  # a store that is cut says so
        return []
    return sorted(_fragments(folder, journal), key=lambda item: (item[0].begin, item[0].end))


def _fragments(folder: Path, journal: str) -> Iterator[tuple[Fragment, Path]]:
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith("."):
            continue
        try:
            yield parse_fragment_path(journal, str(path.relative_to(folder))), path
        except ValidationError:
            continue  # not there yet: written under another name


def stored_content(root: Path, journal: str, *, begin: int = 0) -> bytes:
    """All that is stored from `begin` on, up to the first gap. Blocks.

    Raises: DataError: a file does not hold what its name says. OSError.
    """
    content = b""
    at = begin
    for fragment, path in stored_fragments(root, journal):
        if fragment.end <= at:
            continue
        if fragment.begin > at:
            break
        inflate = decompressor(fragment.codec)
        steps = decompress_steps(inflate, path.read_bytes(), step_bytes_max=_STEP_BYTES)
        held = b"".join(steps)
        digest = hashlib.sha1(held, usedforsecurity=False).digest()
        if len(held) != fragment.content_length or digest != fragment.sum:
            raise DataError(f"{path} does not hold what its name says")
        content += held[at - fragment.begin :]
        at = fragment.end
    return content


_POLL_S = 0.05
_CALL_S = 20.0
_REPLICAS_S = 30.0
# How often a replica may move while it is read.
_MOVES_MAX = 2

Contents = dict[str, tuple[int, bytes]]
"""By journal: the offset of the first byte, and all bytes."""


async def read_finals(scene: Scene, *, timeout_s: float) -> tuple[Contents, list[str]]:
    """Record what each journal holds, once it takes appends again.

    Returns: that, and what is wrong: of each journal that takes no appends, or cannot be read.
    """
    contents: Contents = {}
    # Reads are restarted much sooner than time is out, so that it is known what they fail by.
    patience_s = min(_CALL_S, timeout_s / 4)
    async with (
        scene.client(retry_timeout_s=timeout_s) as client,
        scene.client(retry_timeout_s=patience_s) as reading,
    ):
        found = await asyncio.gather(
            *[
                _FinalRead(scene, name, timeout_s).run(client, reading, contents)
                for name in scene.config.all_names
            ]
        )
    return contents, [trouble for trouble in found if trouble]


@final
class _FinalRead:
    """Asks a journal for its head, and reads it up to there. Knows where the time went."""

    def __init__(self, scene: Scene, name: str, timeout_s: float) -> None:
        self._scene = scene
        self._name = name
        self._timeout_s = timeout_s
        self._is_pruned = name == scene.config.pruned_name
        self._end = self._begin = 0
        self._content = b""
        self._began_at = [scene.clock.monotonic()]  # the append, and each read
        self._failure: GazetteError | None = None

    async def run(self, client: AsyncClient, reading: AsyncClient, contents: Contents) -> str:
        """Put what it holds into `contents`. Returns: what is wrong. Cancellation: safe.

        Args:
            client: asks for the head, and is patient.
            reading: reads, and is less so.
        """
        recording = RecordingClient(client, self._scene.recorder, "final")
        trouble = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    self._end = (await recording.append(self._name, b"")).end
                except GazetteError as err:
                    # What can be read still says what was lost.
                    trouble = reason_of(err, f"{self._name} takes no appends: {err}")
                await self._read(reading)
                while self._at < self._end:
                    await pass_time(_POLL_S)
                    await self._read(reading)
        except (GazetteError, TimeoutError) as err:
            return trouble or reason_of(
                err,
                f"{self._name} can be read up to {self._at}, not to its head {self._end}, within "
                f"{self._timeout_s} s: {err!r}; {self._time_told}",
            )
        self._scene.recorder.final(self._name, self._content, begin=self._begin)
        contents[self._name] = (self._begin, self._content)
        return trouble

    @property
    def _at(self) -> int:
        return self._begin + len(self._content)

    async def _read(self, client: AsyncClient) -> None:
        """Read on to the head, or until that fails in a way that may pass. Raises: GazetteError."""
        self._began_at.append(self._scene.clock.monotonic())
        on_jump: Literal["raise", "continue"] = "continue" if self._is_pruned else "raise"
        try:
            async with client.read(self._name, self._at, on_jump=on_jump) as reader:
                async for piece in reader:
                    at = reader.offset - len(piece)
                    if at != self._at:
                        # What precedes was pruned, maybe since it was read.
                        self._begin, self._content = at, b""
                    self._content += bytes(piece)
        except GazetteError as err:
            # Brokers may not have seen yet that a fragment was deleted.
            may_pass = CallFailed if self._is_pruned else CallUnanswered
            if not (err.retriable or isinstance(err, may_pass)):
                raise
            self._failure = err

    @property
    def _time_told(self) -> str:
        """Where the time went."""
        now, at = self._scene.clock.monotonic(), self._began_at
        if len(at) == 1:
            return f"the append that asks for its head has not ended after {now - at[0]:.1f} s"
        told = (
            f"its head was known after {at[1] - at[0]:.1f} s, and the last of {len(at) - 1} reads "
            f"began {now - at[-1]:.1f} s ago"
        )
        return told if self._failure is None else f"{told}; one before failed: {self._failure}"


# ------------------------------------------------------------------ each replica


async def check_replicas(
    scene: Scene, endpoints: Mapping[str, str], contents: Contents, *, replication: int
) -> list[str]:
    """Every replica of every journal holds what the journal holds, up to its head.

    Args:
        endpoints: where each broker is reached, by its id.
        contents: of all journals.

    Returns: what is wrong.
    """
    wrong: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(scene.client(retry_timeout_s=patient(_REPLICAS_S)))
        stubs = {}
        for broker, endpoint in endpoints.items():
            target = endpoint.removeprefix("http://")
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
            stubs[broker] = protocol_pb2_grpc.JournalStub(channel)  # type: ignore[no-untyped-call]
        for name in contents:
            wrong += await _check_replicas(client, stubs, name, contents[name], replication)
    return wrong


async def _check_replicas(
    client: AsyncClient,
    stubs: Mapping[str, Any],
    name: str,
    content: tuple[int, bytes],
    replication: int,
) -> list[str]:
    """Returns: what is wrong with the replicas of one journal, which may move meanwhile."""
    moves = 0
    while True:
        route = (await client.get(name)).route
        brokers = sorted(member.suffix for member in route.members)
        texts = [await _check_replica(stubs[broker], name, *content) for broker in brokers]
        wrong = [
            f"{broker}, asked by itself: {text}"
            for broker, text in zip(brokers, texts, strict=True)
            if text
        ]
        if len(brokers) < replication:
            wrong.append(f"{name} has {len(brokers)} replicas of {replication} at the end")
        # Another broker may have taken the place of one, since all journals were resumed just now.
        is_moved = (await client.get(name)).route.members != route.members
        if not wrong or not is_moved or moves == _MOVES_MAX:
            return wrong
        moves += 1


async def _check_replica(stub: Any, name: str, begin: int, content: bytes) -> str:
    """Returns: how this broker's own content differs."""
    end = begin + len(content)
    loop = asyncio.get_running_loop()
    until = loop.time() + patient(_REPLICAS_S)
    while True:
        try:
            text, head = await _differs(stub, name, begin, content)
        except grpc.aio.AioRpcError as err:
            text, head = f"{name} cannot be read: {err.code()} {err.details()}", -1
        if text == "" and head == end:
            return ""
        # It learns that content is committed with the next proposal.
        if loop.time() > until:
            return text or f"{name} ends at {head}, and not at {end}"
        await pass_time(_POLL_S)


async def _differs(stub: Any, name: str, begin: int, content: bytes) -> tuple[str, int]:
    """Read all that a broker itself has. Returns: what is wrong, and its write head."""
    at, head = begin, -1
    end = begin + len(content)
    while at < end:
        request = pb.ReadRequest(journal=name, offset=at, do_not_proxy=True)
        was, skip_to = at, at
        async for response in stub.Read(request, timeout=_CALL_S):
            if response.content:
                held = response.content
                if content[response.offset - begin : response.offset - begin + len(held)] != held:
                    return f"{name} differs within [{at}, {at + len(held)})", head
                at = response.offset + len(held)
                continue
            if response.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
                return f"{name} answers {pb.Status.Name(response.status)}", head
            if response.status == pb.OK:
                head = response.write_head
                if response.offset > at:
                    return f"{name} has nothing of [{at}, {response.offset})", head
                if response.fragment_url or response.fragment.backing_store:
                    skip_to = response.fragment.end  # in the store, which is read by itself
        at = max(at, skip_to)
        if at == was:
            return f"{name} has nothing from {at} on", head
    return "", max(head, at) if head <= at else head


# ------------------------------------------------------------------ the store


async def check_store(fragments: Path, contents: Contents) -> list[str]:
    """The store, which no broker serves any more, holds everything. Returns: what is wrong."""
    wrong: list[str] = []
    for name, (begin, content) in contents.items():
        try:
            held = await asyncio.to_thread(_stored, fragments, name, begin)
        except (DataError, OSError) as err:
            wrong.append(f"the store of {name}: {err}")
            continue
        if held != content:
            same = next(
                (n for n, (a, b) in enumerate(zip(held, content, strict=False)) if a != b),
                min(len(held), len(content)),
            )
            wrong.append(
                f"the store of {name}, read by itself, has it up to {begin + len(held)}, and "
                f"differs from offset {begin + same} on; the journal ended at "
                f"{begin + len(content)}; stored: {_spans(fragments, name)}"
            )
    return wrong


def _stored(fragments: Path, name: str, begin: int) -> bytes:
    return stored_content(fragments, name, begin=begin)


def _spans(fragments: Path, name: str) -> Sequence[str]:
    spans = [f"[{item.begin}, {item.end})" for item, _ in stored_fragments(fragments, name)]
    return spans[-5:]
