"""What operators want to know of a cluster of gateways, asked in Kafka's own protocol: groups, lags, transactions, findings.

It works with brokers of Kafka as well. Offsets of gateways are bytes, and so is lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, final

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from typing_extensions import override

from gazette_platform.errors import GazetteError, SetupError, TransportError
from gazette_platform.kafka.wire import API_VERSIONS, maker, message_class

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from ssl import SSLContext


_LATEST: Final = -1
_GROUP, _TRANSACTION = 0, 1
_REBALANCES: Final = ("PreparingRebalance", "CompletingRebalance")
_LONG: Final = timedelta(minutes=15)
_VERSION_BYTES: Final = 2


class GroupSummary(NamedTuple):
    """A group as a listing has it."""

    group_id: str
    state: str
    protocol_type: str
    node: int


class PartitionLag(NamedTuple):
    """How far a group has come in a partition."""

    topic: str
    partition: int
    committed: int
    """-1: it has committed nothing."""
    end: int
    member: str
    """Who reads it; empty: no member does."""
    host: str

    @property
    def lag(self) -> int | None:
        """What was not read yet, in bytes; None: it is not known."""
        return max(0, self.end - self.committed) if min(self.committed, self.end) >= 0 else None


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group, and how far it has come."""

    summary: GroupSummary
    protocol: str
    members: int
    partitions: tuple[PartitionLag, ...]


class TransactionSummary(NamedTuple):
    """A transactional id, and its transaction."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    began: datetime | None
    timeout: timedelta
    partitions: tuple[str, ...]


class Finding(NamedTuple):
    """What `Cluster.findings` has looked at."""

    level: Literal["ok", "warning", "error"]
    text: str


@final
@dataclass(slots=True)
class Cluster:
    """A cluster, reached by one address; a context manager that closes all connections."""

    host: str
    port: int
    tls: SSLContext | None = None
    token: str = ""
    _callers: dict[int, Caller] = field(default_factory=dict)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _nodes: dict[int, tuple[str, int]] = field(default_factory=dict)
    _topics: tuple[Any, ...] = ()

    async def __aenter__(self) -> Self:
        """Raises: TransportError: the address does not answer. SetupError: the login fails."""
        first = await self._enter(self.host, self.port)
        found = await first.ask(
            "metadata",
            9,
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self._nodes = {one.node_id: (one.host, one.port) for one in found.brokers}
        self._topics = found.topics
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    @property
    def nodes(self) -> dict[int, tuple[str, int]]:
        """Where clients are sent, by node."""
        return self._nodes

    async def _enter(self, host: str, port: int) -> Caller:
        caller = Caller(host, port, tls=self.tls, token=self.token)
        return await self._stack.enter_async_context(caller)

    async def _node(self, node_id: int) -> Caller:
        caller = self._callers.get(node_id)
        if caller is None:
            if node_id not in self._nodes:
                raise TransportError(f"node {node_id} is not one of the cluster's (ask again)")
            caller = self._callers[node_id] = await self._enter(*self._nodes[node_id])
        return caller

    async def _coordinator(self, kind: int, name: str) -> Caller:
        some = await self._node(min(self._nodes))
        found = await some.ask("find_coordinator", 2, key_type=kind, key=name)
        if found.error_code is not ErrorCode.none:
            raise TransportError(f"{name} has no coordinator: {found.error_code.name}")
        return await self._node(found.node_id)

    # ------------------------------------------------------------ groups

    async def groups(self) -> list[GroupSummary]:
        """All groups, by name. Raises: TransportError."""
        found: list[GroupSummary] = []
        for node_id in self._nodes:
            caller = await self._node(node_id)
            listed = await caller.ask("list_groups", 4, states_filter=())
            _check(listed.error_code, f"groups of node {node_id}")
            found += (
                GroupSummary(
                    one.group_id, getattr(one, "group_state", ""), one.protocol_type, node_id
                )
                for one in listed.groups
            )
        return sorted(found)

    async def group(self, group_id: str) -> GroupDetails:
        """A group with its members and offsets. Raises: TransportError: it does not exist, or cannot be asked for."""
        caller = await self._coordinator(_GROUP, group_id)
        described = await caller.ask(
            "describe_groups", 5, groups=(group_id,), include_authorized_operations=False
        )
        (one,) = described.groups
        _check(one.error_code, f"group {group_id}")
        if one.group_state == "Dead":
            raise TransportError(f"there is no group {group_id} (see `gazctl kafka groups`)")
        readers: dict[tuple[str, int], tuple[str, str]] = {}
        for member in one.members:
            name = member.group_instance_id or member.member_id
            for place in _assigned(member.member_assignment):
                readers[place] = (name, member.client_host.removeprefix("/"))
        fetched = await caller.ask(
            "offset_fetch", 7, group_id=group_id, topics=None, require_stable=False
        )
        committed = {
            (topic.name, part.partition_index): part.committed_offset
            for topic in fetched.topics
            for part in topic.partitions
        }
        places = sorted({*committed, *readers})
        ends = await self.ends(places)
        node_id = next(i for i, known in self._callers.items() if known is caller)
        return GroupDetails(
            GroupSummary(group_id, one.group_state, one.protocol_type, node_id),
            one.protocol_data,
            len(one.members),
            tuple(
                PartitionLag(
                    *place,
                    committed.get(place, -1),
                    ends.get(place, -1),
                    *readers.get(place, ("", "")),
                )
                for place in places
            ),
        )

    async def ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offset of the next record, by topic and partition; those that fail are left out."""
        leaders = {
            (topic.name, part.partition_index): part.leader_id
            for topic in self._topics
            for part in topic.partitions
        }
        by_node: dict[int, dict[str, list[int]]] = {}
        for topic, number in places:
            node_id = leaders.get((topic, number), -1)
            if node_id in self._nodes:
                by_node.setdefault(node_id, {}).setdefault(topic, []).append(number)
        ends: dict[tuple[str, int], int] = {}
        for node_id, wanted in by_node.items():
            caller = await self._node(node_id)
            answer = await caller.ask(
                "list_offsets",
                5,
                replica_id=-1,
                isolation_level=0,
                topics=tuple(
                    Part(
                        "ListOffsetsTopic",
                        name=name,
                        partitions=tuple(
                            Part("ListOffsetsPartition", partition_index=n, timestamp=_LATEST)
                            for n in numbers
                        ),
                    )
                    for name, numbers in wanted.items()
                ),
            )
            ends |= {
                (topic.name, part.partition_index): part.offset
                for topic in answer.topics
                for part in topic.partitions
                if part.error_code is ErrorCode.none
            }
        return ends

    # ------------------------------------------------------------ transactions

    async def transactions(self) -> list[TransactionSummary]:
        """All transactional ids, by name; none if the nodes do not list them. Raises: TransportError."""
        found: list[TransactionSummary] = []
        for node_id in self._nodes:
            caller = await self._node(node_id)
            if not caller.knows("list_transactions"):
                continue
            listed = await caller.ask(
                "list_transactions", 0, state_filters=(), producer_id_filters=()
            )
            _check(listed.error_code, f"transactions of node {node_id}")
            ids = tuple(one.transactional_id for one in listed.transaction_states)
            described = await caller.ask("describe_transactions", 0, transactional_ids=ids)
            found += (
                TransactionSummary(
                    one.transactional_id,
                    one.transaction_state,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_start_time if one.topics else None,
                    one.transaction_timeout,
                    tuple(f"{t.topic}/{n}" for t in one.topics for n in t.partitions),
                )
                for one in described.transaction_states
                if one.error_code is ErrorCode.none
            )
        return sorted(found)

    # ------------------------------------------------------------ findings

    async def findings(self, *, now: datetime) -> list[Finding]:
        """Look for what keeps clients from working. Raises: TransportError."""
        found = [Finding("ok", f"{self.host}:{self.port} answers; nodes: {len(self._nodes)}")]
        for node_id, (host, port) in sorted(self._nodes.items()):
            try:
                await self._node(node_id)
            except GazetteError as err:
                cure = "set --kafka.advertise of that gateway to an address that clients reach"
                found.append(Finding("error", f"node {node_id} cannot be reached: {err} ({cure})"))
            else:
                found.append(Finding("ok", f"node {node_id} is reached at {host}:{port}"))
        found += self._topic_findings()
        if all(one.level == "ok" for one in found[: 1 + len(self._nodes)]):
            found += await self._group_findings()
            found += await self._transaction_findings(now)
        return found

    def _topic_findings(self) -> Iterable[Finding]:
        for topic in self._topics:
            numbers = [part.partition_index for part in topic.partitions]
            if sorted(numbers) != list(range(len(numbers))):
                yield Finding(
                    "error",
                    f"topic {topic.name} has the partitions {sorted(numbers)}, and clients expect all from 0 on "
                    "(give its journals such labels kafka.partition)",
                )
            for part in topic.partitions:
                if part.error_code is not ErrorCode.none or part.leader_id not in self._nodes:
                    text = (
                        f"{topic.name}/{part.partition_index} has no leader: {part.error_code.name}"
                    )
                    yield Finding("error", text)
        partitions = sum(len(topic.partitions) for topic in self._topics)
        yield Finding("ok", f"topics: {len(self._topics)}, partitions: {partitions}")

    async def _group_findings(self) -> list[Finding]:
        found: list[Finding] = []
        groups = await self.groups()
        for one in groups:
            if one.state in _REBALANCES:
                found.append(
                    Finding(
                        "warning", f"group {one.group_id} is rebalancing: look again in a minute"
                    )
                )
            elif one.state == "Stable":
                details = await self.group(one.group_id)
                idle = [part for part in details.partitions if part.lag and not part.member]
                found += (
                    Finding(
                        "warning",
                        f"group {one.group_id}: no member reads {part.topic}/{part.partition}, which has {part.lag} "
                        "bytes to read",
                    )
                    for part in idle
                )
        return [*found, Finding("ok", f"groups: {len(groups)}")]

    async def _transaction_findings(self, now: datetime) -> list[Finding]:
        found: list[Finding] = []
        for one in await self.transactions():
            if one.began is None:
                continue
            age = now - one.began
            if one.state == "Ongoing" and age > _LONG:
                found.append(
                    Finding(
                        "warning",
                        f"transaction {one.transactional_id} is open for {age}: consumers of committed records "
                        f"wait in {', '.join(one.partitions)}",
                    )
                )
            elif one.state.startswith("Prepare") and age > one.timeout:
                found.append(
                    Finding(
                        "error",
                        f"transaction {one.transactional_id} is decided and cannot be written: look at the logs of the gateways",
                    )
                )
        return found


def _check(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.none:
        raise TransportError(f"{what}: {code.name}")


def _assigned(content: bytes) -> list[tuple[str, int]]:
    """The partitions of a member, as consumers write them; none if another program did."""
    try:
        found, _ = entity_reader(ConsumerProtocolAssignment)(content, _VERSION_BYTES)
    except Exception:  # noqa: BLE001  bytes of a client, which need not be what they claim
        return []
    return [(one.topic, n) for one in found.assigned_partitions for n in one.partitions]


_SIZE: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 256 << 20


@final
class Part:
    """An entity inside of a request, whose class depends on the request's version.

    Args:
        kind: its class, such as ``ListOffsetsTopic``.
    """

    def __init__(self, kind: str, /, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields


def _built(name: str, version: int, kind: str, fields: dict[str, Any]) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, Part):
            return _built(name, version, value.kind, value.fields)
        return tuple(map(of, value)) if isinstance(value, tuple) else value

    build = maker(name, version, kind, "request")
    return build({field: of(value) for field, value in fields.items()})


@final
class Caller:
    """A connection to one gateway, or one broker of Kafka. Not for several tasks.

    Args:
        tls: None for a plain connection.
        token: sent as the password of SASL/PLAIN; empty: no login.
        timeout_s: of each call, in seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        token: str = "",
        client_id: str = "gazctl",
        timeout_s: float = 10.0,
    ) -> None:
        self._address = host, port
        self._tls = tls
        self._token = token
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._number = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.versions: dict[int, tuple[int, int]] = {API_VERSIONS: (0, 0)}

    @override
    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    async def __aenter__(self) -> Self:
        """Raises: TransportError: it cannot be reached, or is not Kafka's. SetupError: the login fails."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._reader, self._writer = await asyncio.open_connection(
                    *self._address, ssl=self._tls
                )
        except (OSError, TimeoutError) as err:
            raise TransportError(
                f"{self}: {str(err) or 'no answer'} (is it the address of a Kafka port?)"
            ) from err
        try:
            found = await self.ask("api_versions", 0)
            self.versions = {
                one.api_key: (one.min_version, one.max_version) for one in found.api_keys
            }
            if self._token:
                await self._log_in()
        except BaseException:
            self._writer.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _log_in(self) -> None:
        await self.ask("sasl_handshake", 1, mechanism="PLAIN")
        auth = b"\0token\0" + self._token.encode()
        found = await self.ask("sasl_authenticate", 2, auth_bytes=auth)
        if found.error_code is not ErrorCode.none:
            raise SetupError(f"{self}: the login failed: {found.error_message or 'no reason'}")

    def knows(self, name: str) -> bool:
        """Whether it answers a call, such as ``list_transactions``."""
        return int(message_class(name, 0, "request").__api_key__) in self.versions

    async def ask(self, name: str, most: int, **fields: Any) -> Any:
        """Make a call.

        Args:
            name: of the call, such as ``list_groups``.
            most: the largest version that the caller understands; the other side may have a smaller one.
            fields: of the request; those that the version does not have are left out. Entities in it are a `Part`.

        Returns: the answer, as `kio` has it.
        Raises: TransportError: there is none.
        """
        probe = message_class(name, most, "request")
        low, high = self.versions.get(int(probe.__api_key__), (0, -1))
        version = min(most, high)
        if version < low:
            raise TransportError(f"{self}: it has no {name} of a version up to {most}")
        kind = message_class(name, version, "request")
        request = _built(name, version, kind.__name__, fields)
        self._number += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._exchange(kind, request)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as err:
            raise TransportError(f"{self}: {name}: {str(err) or 'no answer'}") from err
        answer = message_class(name, version, "response")
        _, size = entity_reader(answer.__header_schema__)(body, 0)
        found, _ = entity_reader(answer)(body, size)
        return found

    async def _exchange(self, kind: Any, request: Any) -> bytes:
        assert self._reader is not None  # entered
        assert self._writer is not None  # likewise
        header = kind.__header_schema__
        buffer = io.BytesIO()
        head = header(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__,
            correlation_id=self._number,
            client_id=self._client_id,
        )
        entity_writer(header)(buffer, head)
        entity_writer(kind)(buffer, request)
        content = buffer.getvalue()
        self._writer.write(_SIZE.pack(len(content)) + content)
        await self._writer.drain()
        (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise TransportError(f"{self}: an answer of {size} bytes is not Kafka's")
        return await self._reader.readexactly(size)
