"""The consumer groups that this node coordinates: the state machines of `groups`, driven by requests, time and etcd.

The coordinator of a group is the node that all nodes compute from its name. When nodes come or go, the former coordinator ends
the group with NOT_COORDINATOR, and its members join again at the next one, which claims the group in etcd. Nodes may disagree
for a moment: the claim decides, as every write compares it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError, Fenced, GazetteError
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.group_store import Claim, GroupRecord, GroupStore, newest_ms
from gazette_platform.kafka.group_types import ID_CHARS_MAX, GroupLimits, GroupState, Joined, Synced
from gazette_platform.kafka.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gazette_platform.kafka.gateway import Gateway

_log = logging.getLogger(__name__)

_GROUPS_MAX: Final = 10_000
_TICK_S: Final = 0.1
_IDLE_S: Final = 60.0
_SWEEP_S: Final = 3600.0
_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long offsets of a group without members are kept, as Kafka keeps them."""


def group_place(group_id: str) -> str:
    """What the coordinator of a group is computed from."""
    return f"group/{group_id}"


@final
class Later:
    """An answer that waits for a future; nothing is left over if its connection is gone before."""

    def __init__(self, future: asyncio.Future[Any], build: Callable[[Any], Any]) -> None:
        self._future = future
        self._build = build

    def __await__(self) -> Generator[Any, None, Any]:
        """The answer."""
        found = yield from asyncio.shield(self._future).__await__()
        return self._build(found)


@final
@dataclass(slots=True, eq=False)
class LiveGroup:
    """A group in this node's memory.

    Attributes:
        lock: of whoever moves the group on; what it does is stored before another goes on.
    """

    group: Group
    claim: Claim
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    used_at: float = 0.0
    ended_by: ErrorCode = ErrorCode.none

    def check(self) -> None:
        """Raises: KafkaError: this node does not coordinate the group any more."""
        if self.ended_by is not ErrorCode.none:
            raise KafkaError(self.ended_by)


@final
class LiveGroups:
    """See the module."""

    def __init__(
        self, gateway: Gateway, store: GroupStore, limits: GroupLimits | None = None
    ) -> None:
        self._gateway = gateway
        self.store = store
        self._limits = limits or GroupLimits()
        self._groups: dict[str, LiveGroup] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._numbers = 0
        self._nodes: frozenset[int] = frozenset()
        self._swept_at = -math.inf
        gauges = gateway.metrics.gauges
        gauges["groups"] = self._groups.__len__
        gauges["group_members"] = lambda: sum(
            len(live.group.members) for live in self._groups.values()
        )

    def start(self) -> None:
        """Begin to watch the time."""
        self.store.start()
        self._gateway.tasks.keep(self._watch, name="kafka group time")

    def stop(self) -> None:
        """Send all members to other nodes."""
        for live in [*self._groups.values()]:
            self.end(live, ErrorCode.not_coordinator)

    @property
    def now(self) -> float:
        """Seconds, of the clock of all groups."""
        return self._gateway.clock.monotonic()

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self._gateway.clock.unix_s() * 1000)

    def is_ours(self, group_id: str) -> bool:
        """Whether this node coordinates the group."""
        nodes = self._gateway.nodes
        return nodes.keeper(group_place(group_id)).id == nodes.own.id

    def check(self, group_id: str) -> None:
        """Raises: KafkaError: a group cannot have this name, or another node coordinates it."""
        if not group_id or len(group_id) > ID_CHARS_MAX:
            raise KafkaError(ErrorCode.invalid_group_id)
        if not self.is_ours(group_id):
            raise KafkaError(ErrorCode.not_coordinator)

    def known(self, group_id: str) -> LiveGroup | None:
        """A group that is in memory."""
        return self._groups.get(group_id)

    def of_member(self, group_id: str) -> LiveGroup:
        """The group of one who says that it is a member. Raises: KafkaError: it is none."""
        self.check(group_id)
        live = self._groups.get(group_id)
        if live is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        live.used_at = self.now
        return live

    async def get(self, group_id: str) -> LiveGroup:
        """A group, which this node claims if it is not in memory.

        Raises: KafkaError; EtcdError. Cancellation: safe.
        """
        self.check(group_id)
        live = self._groups.get(group_id)
        if live is None:
            lock = self._loading.setdefault(group_id, asyncio.Lock())
            try:
                async with lock:
                    live = self._groups.get(group_id) or await self._load(group_id)
            finally:
                if not lock.locked():
                    self._loading.pop(group_id, None)
        live.used_at = self.now
        return live

    async def _load(self, group_id: str) -> LiveGroup:
        if len(self._groups) >= _GROUPS_MAX:
            self._drop_idle(0.0)
        if len(self._groups) >= _GROUPS_MAX:
            raise KafkaError(
                ErrorCode.group_max_size_reached, f"this node coordinates {_GROUPS_MAX} groups"
            )
        claim = await self.store.claim(group_id, self._gateway.nodes.own.id, now_ms=self.now_ms)
        self.check(group_id)
        group = Group(group_id, self._limits, claim.record.generation)
        live = self._groups[group_id] = LiveGroup(group, claim)
        return live

    # ------------------------------------------------------------ moving on

    def wait(self, live: LiveGroup) -> tuple[int, asyncio.Future[Any]]:
        """A number for a request, and the future of its answer."""
        self._numbers += 1
        future: asyncio.Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        live.waiting[self._numbers] = future
        return self._numbers, future

    async def settle(self, live: LiveGroup) -> None:
        """Store a new generation, then send the answers that are due. The caller holds the lock.

        If it cannot be stored, the group ends here: its members ask for the coordinator again.
        """
        group = live.group
        if group.generation != live.claim.record.generation:
            record = GroupRecord(
                group.generation,
                self._gateway.nodes.own.id,
                group.protocol_type or "",
                group.protocol or "",
                self.now_ms,
            )
            try:
                await self.store.save(live.claim, record)
            except GazetteError as err:
                _log.warning("group %s ends on this node: %s", group.group_id, err)
                is_fenced = isinstance(err, Fenced)
                self.end(live, ErrorCode.not_coordinator if is_fenced else code_of(err))
                return
        self._send(live)

    def _send(self, live: LiveGroup) -> None:
        for number, answer in live.group.take_answers():
            future = live.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def end(self, live: LiveGroup, error: ErrorCode) -> None:
        """Forget a group; all that wait get the error."""
        if self._groups.get(live.group.group_id) is live:
            del self._groups[live.group.group_id]
        live.ended_by = error
        # What was decided and not stored never was.
        live.group.answers = [(n, one._replace(error=error)) for n, one in live.group.answers]
        live.group.end(error)
        self._send(live)

    # ------------------------------------------------------------ time

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = self.now
            nodes = frozenset(self._gateway.nodes.live)
            if nodes != self._nodes:
                self._nodes = nodes
                self._end_moved()
            for live in [*self._groups.values()]:
                if live.group.wakes_at <= now and not live.lock.locked():
                    self._gateway.tasks.spawn(self._tick(live), name="kafka group tick")
            self._drop_idle(_IDLE_S)
            if now - self._swept_at > _SWEEP_S:
                self._swept_at = now
                self._gateway.tasks.spawn(self._sweep(), name="kafka group sweep")

    def _end_moved(self) -> None:
        for live in [*self._groups.values()]:
            if not self.is_ours(live.group.group_id):
                _log.info("group %s moves to another node", live.group.group_id)
                self.end(live, ErrorCode.not_coordinator)

    async def _tick(self, live: LiveGroup) -> None:
        async with live.lock:
            if live.ended_by is ErrorCode.none:
                live.group.tick(self.now)
                await self.settle(live)

    def _drop_idle(self, idle_s: float) -> None:
        """Forget groups without members: etcd has all of them."""
        limit = self.now - idle_s
        for live in [*self._groups.values()]:
            is_empty = live.group.state is GroupState.EMPTY and live.group.wakes_at == math.inf
            if is_empty and live.used_at <= limit and not live.lock.locked() and not live.waiting:
                del self._groups[live.group.group_id]

    async def _sweep(self) -> None:
        """Remove groups without members that have committed nothing for a week."""
        try:
            for group_id, (record, revision) in (await self.store.all_groups()).items():
                limit = self.now_ms - _KEPT_MS
                if record.at_ms > limit or group_id in self._groups or not self.is_ours(group_id):
                    continue
                offsets = await self.store.offsets(group_id)
                if newest_ms(record, [*offsets.values()]) <= limit:
                    _log.info("group %s was not used for a week, and is removed", group_id)
                    await self.store.delete(group_id, revision)
        except EtcdError as err:
            _log.warning("groups that are not used any more stay: %s", err)
