"""Performs the steps of cases on an arena, and hands out what was answered.

| ``do`` | arguments | does |
|---|---|---|
| ``rpc`` | method, messages (bytes), and of `_Rpc` | one call; the stream is ended as ``end`` says |
| ``http`` | raw (bytes), ``end`` | raw bytes to the HTTP port; ``{TOKEN:name}`` and ``{HOST}`` are filled in |
| ``tcp`` | raw (bytes), ``end``, ``cuts`` | the same to the gRPC port, in pieces that end there |
| ``etcd`` | puts ([tail of the key, bytes]) | keys under the prefix of the cluster, until the case ends |
| ``files`` | files ([path, bytes]), deep ([folder, levels]) | files in the store, until the arena is renewed |
| ``twin`` | step | the step for `HIDDEN`, and for `ABSENT`: the answers must be alike |
| ``parse`` | target, text (bytes) | a parser, in this process |
| ``wait`` | seconds | nothing |

``end`` is one of: ``close`` (half-close, and wait for the answer), ``cancel``, ``hold`` (the
connection stays open, and nothing more is said or read, until `Driver.release`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import grpc
from grpc import aio

from gazette_platform.errors import EtcdError
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.testing.waiting import pass_time, turns
from tests.fuzz.arena import ABSENT, HIDDEN, PREFIX, TOKENS, signed
from tests.fuzz.parsers import ParserProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.fuzz.arena import Arena
    from tests.fuzz.cases import Case, Step

__all__ = ["METHODS", "Answer", "Driver", "Method"]

_TIMEOUT_S = 1.0
_BODY_BYTES_MAX = 256 << 10
_HELD_MAX = 200
_HELD_S = 8.0
# What gRPC says on our side: of a call that was answered while it wrote, and of what it does not send.
_OURS = ("Internal error from Core", "Invalid metadata")


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC: its messages, and which side streams."""

    request: Any
    response: Any
    is_stream_in: bool = False
    is_stream_out: bool = False


_JOURNAL, _ADMIN = "/protocol.Journal/", "/gazette_platform.Admin/"

METHODS: dict[str, Method] = {
    _JOURNAL + "List": Method(pb.ListRequest, pb.ListResponse, is_stream_out=True),
    _JOURNAL + "Apply": Method(pb.ApplyRequest, pb.ApplyResponse),
    _JOURNAL + "Read": Method(pb.ReadRequest, pb.ReadResponse, is_stream_out=True),
    _JOURNAL + "Append": Method(pb.AppendRequest, pb.AppendResponse, is_stream_in=True),
    _JOURNAL + "Replicate": Method(
        pb.ReplicateRequest, pb.ReplicateResponse, is_stream_in=True, is_stream_out=True
    ),
    _JOURNAL + "ListFragments": Method(pb.FragmentsRequest, pb.FragmentsResponse),
    _JOURNAL + "FragmentStoreHealth": Method(
        pb.FragmentStoreHealthRequest, pb.FragmentStoreHealthResponse
    ),
    _ADMIN + "AppendWhole": Method(pb.AppendRequest, pb.AppendResponse),
    _ADMIN + "Flush": Method(admin_pb.FlushRequest, admin_pb.FlushResponse),
    _ADMIN + "PutSavepoint": Method(admin_pb.PutSavepointRequest, admin_pb.PutSavepointResponse),
    _ADMIN + "GetSavepoint": Method(admin_pb.GetSavepointRequest, admin_pb.GetSavepointResponse),
    _ADMIN + "ListSavepoints": Method(
        admin_pb.ListSavepointsRequest, admin_pb.ListSavepointsResponse
    ),
    _ADMIN + "DeleteSavepoint": Method(
        admin_pb.DeleteSavepointRequest, admin_pb.DeleteSavepointResponse
    ),
    _ADMIN + "ResetHead": Method(admin_pb.ResetHeadRequest, admin_pb.ResetHeadResponse),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one step."""

    step: Step
    kind: str
    """``rpc``, ``http``, ``tcp``, ``h2`` (``tcp`` to our own HTTP/2) or ``parse``."""
    code: str
    """Of gRPC by name, of HTTP by number; ``ok`` or ``refused`` of parsers; ``open`` of a connection that the
    broker has not closed; empty: nothing came."""
    text: str = ""
    body: bytes = b""
    elapsed_s: float = 0.0


@final
class Driver:
    """Performs cases, several at a time if asked to.

    Args:
        arena: what the steps are performed on.
        header: as brokers of the arena send it; forged ones are made from it.
    """

    def __init__(self, arena: Arena, header: pb.Header) -> None:
        self._arena = arena
        self._header = header
        self._held: list[tuple[float, Any]] = []
        self._parsers = ParserProcess()

    async def perform(self, case: Case) -> AsyncIterator[Answer]:
        """Yields: the answers to its steps, those that have any."""
        keys: list[str] = []
        try:
            for step in case.steps:
                async for answer in self._step(step, keys):
                    yield answer
        finally:
            for key in keys:
                with contextlib.suppress(EtcdError):
                    await self._arena.etcd.delete(key)
            self._release_old()

    async def release(self) -> None:
        """Close connections that are held open."""
        while self._held:
            _close(self._held.pop()[1])
        await turns()

    async def close(self) -> None:
        """Release all, and end the parsers' process."""
        await self.release()
        await self._parsers.close()

    def _release_old(self) -> None:
        now = time.monotonic()
        while self._held and (len(self._held) > _HELD_MAX or now - self._held[0][0] > _HELD_S):
            _close(self._held.pop(0)[1])

    async def _step(self, step: Step, keys: list[str]) -> AsyncIterator[Answer]:
        match step["do"]:
            case "rpc":
                for _ in range(step.get("times", 1)):
                    yield await self._rpc(step)
            case "http" | "tcp":
                for _ in range(step.get("times", 1)):
                    yield await self._raw(step)
            case "twin":
                yield await self._twin(step)
            case "parse":
                began = time.monotonic()
                code, text = await self._parsers.run(step["target"], step["text"])
                yield Answer(step, "parse", code, text, elapsed_s=time.monotonic() - began)
            case "etcd":
                await self._poke(step["puts"], keys)
            case "files":
                await asyncio.to_thread(self._plant, step)
            case "wait":
                await pass_time(step["seconds"])
            case other:
                raise ValueError(f"no such step: {other}")

    # ------------------------------------------------------------------ gRPC

    async def _rpc(self, step: Step) -> Answer:
        began = time.monotonic()
        channel = self._arena.channels[step.get("broker", 0)]
        method = METHODS[step["method"]]
        messages = self._messages(step, method)
        metadata = self._metadata(step)
        timeout_s, end = step.get("timeout_s", _TIMEOUT_S), step.get("end", "close")
        body = bytearray()
        try:
            # One shape for all: what is unary is a stream of one message on the wire.
            call = channel.stream_stream(step["method"])(
                timeout=None if end == "hold" else timeout_s, metadata=metadata
            )
            async with asyncio.timeout(timeout_s + 5.0):
                await _send(call, messages, end)
                if end == "hold":
                    self._held.append((began, call))
                    return Answer(step, "rpc", "")
                if end == "cancel":
                    call.cancel()
                    return Answer(step, "rpc", "")
                while (raw := await call.read()) is not aio.EOF:
                    if len(body) < _BODY_BYTES_MAX:
                        body += raw
                    if len(body) >= step.get("read_max", 64 << 20):
                        call.cancel()
                        return Answer(step, "rpc", "", body=bytes(body))
                code, text = (await call.code()).name, await call.details() or ""
        except aio.AioRpcError as err:
            code, text = err.code().name, err.details() or ""
            if text in _OURS:
                return Answer(step, "rpc", "", elapsed_s=time.monotonic() - began)
            body += repr(err.trailing_metadata()).encode()
        except (TimeoutError, asyncio.InvalidStateError, aio.BaseError, ValueError, TypeError):
            # The call broke off while it was written, or grpc refuses to send it.
            return Answer(step, "rpc", "", elapsed_s=time.monotonic() - began)
        return Answer(step, "rpc", code, text, bytes(body), time.monotonic() - began)

    def _messages(self, step: Step, method: Method) -> list[bytes]:
        messages = list(step.get("messages", []))
        forged = step.get("header")
        if forged is not None and messages and "header" in method.request.DESCRIPTOR.fields_by_name:
            # A message may come in several pieces, which protobuf merges.
            header = pb.Header()
            header.CopyFrom(self._header)
            for path, value in forged.items():
                holder, name = header, path
                if "." in path:
                    outer, name = path.split(".")
                    holder = getattr(header, outer)
                setattr(holder, name, value)
            if step.get("route"):
                header.route.MergeFromString(step["route"])
            messages[0] = method.request(header=header).SerializeToString() + messages[0]
        return messages

    def _metadata(self, step: Step) -> list[tuple[str, str | bytes]]:
        metadata = [(key, value) for key, value in step.get("metadata", [])]
        token = step.get("token", "fuzz")
        if token == "claims":
            metadata.append(("authorization", f"Bearer {signed(step['claims'])}"))
        elif token in TOKENS:
            metadata.append(("authorization", f"Bearer {self._arena.token(token)}"))
        elif token != "none":
            metadata.append(("authorization", token))
        return metadata

    # ------------------------------------------------------------------ bytes

    async def _raw(self, step: Step) -> Answer:
        broker = self._arena.brokers[step.get("broker", 0)]
        port = broker.http_port if step["do"] == "http" else broker.port
        raw = step["raw"].replace(b"{HOST}", f"127.0.0.1:{port}".encode())
        raw = re.sub(rb"\{TOKEN:(\w+)\}", lambda m: self._arena.token(m[1].decode()).encode(), raw)
        began, body, is_open = time.monotonic(), b"", False
        is_h2 = step["do"] == "tcp" and self._arena.wire == "h2"
        kind = "h2" if is_h2 else step["do"]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        except OSError as err:
            return Answer(step, kind, "", f"no connection: {err}")
        try:
            async with asyncio.timeout(step.get("timeout_s", _TIMEOUT_S)):
                if step.get("end") == "hold":
                    reader._transport.pause_reading()
                    self._held.append((began, writer))
                    await _write(writer, raw, step.get("cuts", ()))
                    return Answer(step, kind, "")
                await _write(writer, raw, step.get("cuts", ()))
                if step.get("end") != "cancel":
                    while len(body) < _BODY_BYTES_MAX and (piece := await reader.read(65536)):
                        body += piece
        except TimeoutError:
            is_open = True
        except OSError:
            pass
        if step.get("end") != "hold":
            _close(writer)
        status = re.match(rb"HTTP/1\.[01] (\d+)", body)
        code = status[1].decode() if status else "open" if is_open else ""
        return Answer(
            step, kind, code, body[:2000].decode("latin-1"), body, time.monotonic() - began
        )

    # ------------------------------------------------------------------ the rest

    async def _twin(self, step: Step) -> Answer:
        """The same for a journal that is hidden and for one that is not there."""
        found = []
        for name in (HIDDEN, ABSENT):
            one = _renamed(step["step"], name)
            answer = await (self._rpc if one["do"] == "rpc" else self._raw)(one)
            if answer.code in {"", "DEADLINE_EXCEEDED", "UNAVAILABLE"}:
                return Answer(step, "twin", "open")
            found.append(f"{answer.code} {answer.text} {_essence(one, answer)}".replace(name, "X"))
        if found[0] == found[1]:
            return Answer(step, "twin", "ok")
        return Answer(
            step, "twin", "differs", f"hidden: {found[0][:300]}; absent: {found[1][:300]}"
        )

    async def _poke(self, puts: list[list[Any]], keys: list[str]) -> None:
        for tail, value in puts:
            key = PREFIX + tail
            with contextlib.suppress(EtcdError, UnicodeError):
                await self._arena.etcd.put(key, value)
                keys.append(key)

    def _plant(self, step: Step) -> None:
        root = self._arena.fragments
        for name, content in step.get("files", []):
            path = root / name
            with contextlib.suppress(OSError, ValueError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        if "deep" in step:
            folder, levels = step["deep"]
            path = root / folder
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)
                for _ in range(levels):
                    path /= "d"
                    path.mkdir(exist_ok=True)


def _renamed(step: Step, name: str) -> Step:
    return {
        key: [m.replace(HIDDEN.encode(), name.encode()) for m in value]
        if key == "messages"
        else value.replace(HIDDEN.encode(), name.encode())
        if key == "raw"
        else value
        for key, value in step.items()
    }


def _essence(step: Step, answer: Answer) -> str:
    """What an answer says beside how things are at the moment."""
    if answer.kind == "http":
        return re.sub(r"(?m)^(Date|X-Request-Id):.*$", "", answer.text)
    if not answer.body or answer.code != "OK":
        return ""
    message = METHODS[step["method"]].response.FromString(answer.body)
    with contextlib.suppress(ValueError):
        message.ClearField("header")
    return str(message)


async def _write(writer: asyncio.StreamWriter, raw: bytes, cuts: Sequence[int]) -> None:
    for begin, end in pairwise([0, *cuts, len(raw)]):
        writer.write(raw[begin:end])
        await writer.drain()
        if end < len(raw):
            await pass_time(0.002)


async def _send(call: Any, messages: list[bytes], end: str) -> None:
    try:
        for message in messages:
            await call.write(message)
        if end == "close":
            await call.done_writing()
    except (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError):
        pass  # it was answered before all was said


def _close(held: Any) -> None:
    if isinstance(held, asyncio.StreamWriter):
        held.transport.abort()
    else:
        held.cancel()
