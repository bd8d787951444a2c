"""What inputs are thrown at: two brokers of different zones with keys, an etcd, and a file store.

| journals | are |
|---|---|
| ``probe/…`` | of the pulse; no input names them, and nothing but the pulse may change them |
| ``secret/…`` | hidden from all tokens but the operator's; nothing of it may be shown to others, or change |
| ``fuzz/…``, ``mine/…`` | for inputs; made again by `Arena.renew`, whatever has become of them |
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, final

import grpc
from grpc import aio

from gazette_platform.etcd import EtcdClient
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.serving.config import Wire
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer, wire_settings
from gazette_platform.testing.waiting import pass_time, patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ABSENT",
    "HIDDEN",
    "JOURNALS",
    "KEY",
    "MARKS",
    "PREFIX",
    "PROBES",
    "TOKENS",
    "Arena",
    "pulse_problem",
    "signed",
]

KEY = base64.b64encode(b"fuzz-key-of-no-account-whatsoever").decode()
PREFIX = "/gazette/fuzz"
PROBES = ("probe/one", "probe/two")
HIDDEN = "secret/pay-kobold"
ABSENT = "secret/pay-gnomes"
"""As long as `HIDDEN`, but never there: a caller without rights must see no difference."""

JOURNALS = ["fuzz/a", "fuzz/b", "fuzz/c", "mine/spy", "mine/two"]

MARKS = (b"KOBOLD-CONTENT-5f1c", b"kobold-label-5f1c", b"kobold-register-5f1c")
"""Found in content, labels and registers of `HIDDEN`, and in no input."""

_SECRET_CONTENT = MARKS[0] * 40

_TREE = """
name: ""
children:
- name: fuzz/
  replication: 2
  fragment: &fragment
    {length: 1048576, compression_codec: GZIP, stores: ["file:///"], refresh_interval: 1s, flush_interval: 1m}
  children:
  - {name: fuzz/a}
  - {name: fuzz/b, replication: 1}
  - {name: fuzz/c, replication: 1, fragment: {compression_codec: NONE, length: 1024}}
- name: mine/
  replication: 1
  fragment: *fragment
  children: [{name: mine/spy}, {name: mine/two}]
- name: probe/
  replication: 2
  fragment: *fragment
  children: [{name: probe/one, replication: 1}, {name: probe/two}]
- name: secret/
  replication: 2
  fragment: *fragment
  children: [{name: secret/pay-kobold, labels: [{name: aa, value: kobold-label-5f1c}]}]
"""

_ALL = (1 << 32) - 1


def _within(prefix: str) -> dict[str, Any]:
    return {"include": {"labels": [{"name": "name", "value": prefix, "prefix": True}]}}


TOKENS: dict[str, dict[str, Any]] = {
    "all": {"cap": _ALL, "sel": {}},
    "fuzz": {"cap": _ALL, "sel": _within("fuzz/")},
    "mine": {"cap": _ALL, "sel": _within("mine/")},
    "list": {"cap": 2, "sel": _within("mine/")},
    "read": {"cap": 8, "sel": _within("mine/")},
    "append": {"cap": 16, "sel": _within("mine/")},
    "expired": {"cap": _ALL, "sel": {}, "exp": 1},
}
"""Claims by the name under which steps ask for their token. Only ``all`` may see `HIDDEN`."""


def signed(claims: str, *, key: str = KEY) -> str:
    """A token with claims in JSON, however odd; ``$EXP`` in them is replaced by a time that is valid."""
    claims = claims.replace("$EXP", str(int(time.time()) + 3600))  # noqa: TID251
    header = _b64(b'{"alg":"HS256","typ":"JWT"}')
    body = f"{header}.{_b64(claims.encode(errors='surrogatepass'))}"
    mac = hmac.new(base64.b64decode(key), body.encode(), hashlib.sha256).digest()
    return f"{body}.{_b64(mac)}"


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@final
class Arena:
    """A context manager that starts everything, and kills what is left at the end.

    Args:
        folder: a new one, for store, spools and logs.
        etcd_binary: to start.
    """

    def __init__(self, folder: Path, etcd_binary: Path) -> None:
        self.folder = folder
        self.fragments = folder / "fragments"
        self.brokers: list[BrokerServer] = []
        self.channels: list[aio.Channel] = []
        self.wire = wire_settings().get("wire", Wire.H2).value
        self._etcd_server = EtcdServer(etcd_binary)
        self._stack = AsyncExitStack()
        self._tokens: dict[str, str] = {}
        self._kept: dict[str, object] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self.folder.mkdir(parents=True)
        await asyncio.to_thread(self._etcd_server.start)
        self._stack.push_async_callback(asyncio.to_thread, self._etcd_server.stop)
        self.etcd = await self._stack.enter_async_context(EtcdClient([self._etcd_server.endpoint]))
        for number, zone in enumerate("ab", 1):
            broker = BrokerServer(
                self.folder / f"broker-{number}",
                etcd=self._etcd_server.endpoint,
                prefix=PREFIX,
                broker_id=f"broker-{number}",
                zone=zone,
                fragments=self.fragments,
                lease_s=10.0,
                flags=(
                    f"--broker.auth-keys={KEY}",
                    "--broker.append-wait=2s",
                    f"--broker.wire={self.wire}",
                ),
            )
            await asyncio.to_thread(broker.start, timeout_s=60.0)
            self._stack.push_async_callback(asyncio.to_thread, broker.kill)
            self.brokers.append(broker)
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]
            channel = aio.insecure_channel(f"127.0.0.1:{broker.port}", options=options)
            self._stack.push_async_callback(channel.close, None)
            self.channels.append(channel)
        await self._apply(_changes())
        for journal in (*PROBES, HIDDEN, *JOURNALS):
            await self._settled(journal)
        await self._hide()
        self._kept = await self._untouchable()

    def token(self, name: str) -> str:
        """The token of an entry of `TOKENS`; for any other name, a token without rights."""
        if name not in self._tokens or name not in TOKENS:
            claims = {"exp": "$EXP", "iat": 1} | TOKENS.get(name, {"cap": 0})
            self._tokens[name] = signed(json.dumps(claims).replace('"$EXP"', "$EXP"))
        return self._tokens[name]

    # ------------------------------------------------------------------ calls of the operator

    async def call(
        self, method: str, request: Any, *, broker: int = 0, timeout_s: float = 20.0
    ) -> bytes:
        """A unary call with all rights."""
        rpc = self.channels[broker].unary_unary(f"/{method}")
        raw = await rpc(
            request.SerializeToString(),
            timeout=patient(timeout_s),
            metadata=[("authorization", f"Bearer {self.token('all')}")],
            wait_for_ready=True,
        )
        return bytes(raw)

    async def append(self, journal: str, content: bytes, **fields: Any) -> pb.AppendResponse:
        """Append with all rights, and no second attempt."""
        messages = [pb.AppendRequest(journal=journal, **fields)]
        if content:
            messages.append(pb.AppendRequest(content=content))
        raw = await self.channels[0].stream_unary("/protocol.Journal/Append")(
            iter([*(m.SerializeToString() for m in messages), b""]),
            timeout=patient(20.0),
            metadata=[("authorization", f"Bearer {self.token('all')}")],
        )
        return pb.AppendResponse.FromString(raw)

    async def read(self, journal: str, *, broker: int = 0) -> bytes:
        """All content, with all rights."""
        rpc = self.channels[broker].unary_stream("/protocol.Journal/Read")
        metadata = [("authorization", f"Bearer {self.token('all')}")]
        request = pb.ReadRequest(journal=journal).SerializeToString()
        answers = [
            pb.ReadResponse.FromString(raw)
            async for raw in rpc(request, timeout=patient(20.0), metadata=metadata)
        ]
        return b"".join(answer.content for answer in answers)

    async def touched(self) -> str:
        """What is wrong with what no input may touch; "" if nothing is."""
        await self._calm()
        found = await self._untouchable()
        problems = [
            f"{what} is {_short(found.get(what))}, and was {_short(was)}"
            for what, was in self._kept.items()
            if found.get(what) != was
        ]
        problems += [f"there is {what} now" for what in found if what not in self._kept]
        for journal in PROBES:
            problem = pulse_problem(await self.read(journal))
            if problem:
                problems.append(f"{journal} holds {problem}")
        return "; ".join(problems)

    async def _calm(self, *, timeout_s: float = 30.0) -> None:
        """Wait until brokers have begun all earlier calls: gRPC drops some if there are many."""
        deadline = time.monotonic() + patient(timeout_s)
        for broker in range(len(self.brokers)):
            while True:
                try:
                    await self.call("protocol.Journal/Apply", pb.ApplyRequest(), broker=broker)
                except aio.AioRpcError as err:
                    is_dropped = err.code() is grpc.StatusCode.CANCELLED
                    if not is_dropped or time.monotonic() > deadline:
                        raise
                    await pass_time(0.1)
                else:
                    break

    async def _untouchable(self) -> dict[str, object]:
        """Everything that no input may touch, by name. Only the content of `PROBES` may grow."""
        found: dict[str, object] = {}
        for broker in range(len(self.brokers)):
            content: object
            try:
                content = await self.read(HIDDEN, broker=broker)
            except aio.AioRpcError as err:
                content = err.details()
            found[f"content of {HIDDEN}, read at broker {broker}"] = content
        response = await self.append(HIDDEN, b"")
        found[f"registers of {HIDDEN}"] = response.registers.SerializeToString(deterministic=True)
        found[f"head of {HIDDEN}"] = response.commit.end
        rpc = self.channels[0].unary_stream("/protocol.Journal/List")
        metadata = [("authorization", f"Bearer {self.token('all')}")]
        async for raw in rpc(
            pb.ListRequest().SerializeToString(), timeout=patient(20.0), metadata=metadata
        ):
            for entry in pb.ListResponse.FromString(raw).journals:
                if entry.spec.name in (*PROBES, HIDDEN):
                    spec = entry.spec.SerializeToString(deterministic=True)
                    found[f"spec of {entry.spec.name}"] = spec
        points = admin_pb.ListSavepointsResponse.FromString(
            await self.call(
                "gazette_platform.Admin/ListSavepoints", admin_pb.ListSavepointsRequest()
            )
        )
        for point in points.savepoints:
            if point.name.startswith("kobold"):
                found[f"savepoint {point.name}"] = point.SerializeToString(deterministic=True)
        found |= await asyncio.to_thread(self._hidden_files)
        return found

    def _hidden_files(self) -> dict[str, object]:
        folder = self.fragments / HIDDEN
        files = sorted(path for path in folder.rglob("*") if not path.is_dir())
        return {f"file {path.relative_to(folder)}": path.read_bytes() for path in files}

    async def listed(self) -> dict[str, tuple[int, pb.Route]]:
        """All journals: revision and route by name."""
        rpc = self.channels[0].unary_stream("/protocol.Journal/List")
        metadata = [("authorization", f"Bearer {self.token('all')}")]
        found: dict[str, tuple[int, pb.Route]] = {}
        async for raw in rpc(
            pb.ListRequest().SerializeToString(), timeout=patient(20.0), metadata=metadata
        ):
            for entry in pb.ListResponse.FromString(raw).journals:
                found[entry.spec.name] = entry.mod_revision, entry.route
        return found

    async def header(self) -> pb.Header:
        """A header as the brokers of this cluster send it."""
        response = pb.ApplyResponse.FromString(
            await self.call("protocol.Journal/Apply", pb.ApplyRequest())
        )
        return response.header

    async def renew(self) -> None:
        """Delete whatever inputs have made, with its files, and make their journals again."""
        await self._calm()
        names = [n for n in await self.listed() if not n.startswith(("probe/", "secret/"))]
        for first in range(0, len(names), 50):
            await self._apply(
                [
                    pb.ApplyRequest.Change(delete=n, expect_mod_revision=-1)
                    for n in names[first : first + 50]
                ]
            )
        points = admin_pb.ListSavepointsResponse.FromString(
            await self.call(
                "gazette_platform.Admin/ListSavepoints", admin_pb.ListSavepointsRequest()
            )
        )
        for point in points.savepoints:
            if not point.name.startswith("kobold"):
                request = admin_pb.DeleteSavepointRequest(name=point.name)
                await self.call("gazette_platform.Admin/DeleteSavepoint", request)
        await asyncio.to_thread(self._sweep)
        await self._apply([c for c in _changes() if c.upsert.name in JOURNALS])
        for journal in JOURNALS:
            await self._settled(journal)

    def _sweep(self) -> None:
        for folder in self.fragments.iterdir():
            if folder.name not in {"probe", "secret"}:
                remove(folder)

    async def _apply(self, changes: list[pb.ApplyRequest.Change]) -> None:
        raw = await self.call("protocol.Journal/Apply", pb.ApplyRequest(changes=changes))
        status = pb.ApplyResponse.FromString(raw).status
        assert status == pb.OK, (status, changes)

    async def _settled(self, journal: str, *, timeout_s: float = 30.0) -> None:
        """Wait until the journal takes appends."""
        deadline = time.monotonic() + patient(timeout_s)
        while True:
            response = await self.append(journal, b"ready\n" if journal != HIDDEN else b"")
            if response.status == pb.OK or time.monotonic() > deadline:
                assert response.status == pb.OK, (journal, response)
                return
            await pass_time(0.1)

    async def _hide(self) -> None:
        label = pb.LabelSet(labels=[pb.Label(name="kk", value=MARKS[2].decode())])
        response = await self.append(HIDDEN, _SECRET_CONTENT, union_registers=label)
        assert response.status == pb.OK, response
        assert await self.read(HIDDEN) == _SECRET_CONTENT
        await self.call("gazette_platform.Admin/Flush", admin_pb.FlushRequest(journal=HIDDEN))
        point = admin_pb.Savepoint(name="kobold-point", offsets={HIDDEN: 5})
        await self.call(
            "gazette_platform.Admin/PutSavepoint", admin_pb.PutSavepointRequest(savepoint=point)
        )


def _changes() -> list[pb.ApplyRequest.Change]:
    changes = []
    for change in parse_journal_tree(_TREE):
        assert change.spec is not None
        changes.append(pb.ApplyRequest.Change(upsert=change.spec.to_pb(), expect_mod_revision=-1))
    return changes


def pulse_problem(content: bytes) -> str:
    """What is wrong with a journal of the pulse: foreign, disordered or repeated content; "" if nothing."""
    turn = 0
    for line in content.splitlines(keepends=True):
        if line == b"ready\n" and not turn:
            continue
        if line != b"pulse %d\n" % (turn + 1):
            return f"{line[:80]!r} behind turn {turn} of the pulse"
        turn += 1
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}... ({len(text)} characters)"


def remove(folder: Path) -> None:
    """Remove a folder, even one deeper than Python can recurse."""
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink()
        return
    # The deepest folders go first: what is below a folder is moved up here.
    pending = 0
    while True:
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
        if not inner:
            break
        for path in inner:
            for child in list(path.iterdir()):
                if child.is_dir() and not child.is_symlink():
                    pending += 1
                    child.rename(folder / f"-{pending}")
                else:
                    child.unlink()
            path.rmdir()
    shutil.rmtree(folder)
