"""What all connections of a gateway may hold at a time, and one journal of it; how many parts a request has; how often the log names clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.wire.batches import PARTS_MAX

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

_TEXT_MAX: Final = 500
_A_MINUTE: Final = 30
_MINUTE_S: Final = 60.0


@final
class Budget:
    """Bytes that may be held at a time. Whoever asks waits until there is room, in the order in which they ask."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.free = limit
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def take_now(self, size: int) -> int | None:
        """Take room, if there is some. Returns: what to give back: no more than there is at all; None: `take` has to wait."""
        size = min(size, self._limit)
        if size > self.free or self._waiting:
            return None
        self.free -= size
        return size

    async def take(self, size: int) -> int:
        """Wait for room. Returns: as `take_now`. Cancellation: safe."""
        now = self.take_now(size)
        if now is not None:
            return now
        size = min(size, self._limit)
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)
            else:
                future.cancel()
                self.give(0)
            raise
        return size

    def add(self, size: int) -> None:
        """Take more than was asked for, without waiting: others wait for it."""
        self.free -= size

    def give(self, size: int) -> None:
        """Give room back."""
        self.free += size
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self.free):
            size, future = self._waiting.popleft()
            if not future.done():
                self.free -= size
                future.set_result(None)


_STUCK_S: Final = 5.0
_SHARES_MAX: Final = 10_000


@final
class Share:
    """The part of a room that one name may take, so that the rest is left to others.

    Args:
        name: for errors.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._room = Budget(limit)
        self._moved_at = 0.0
        self._askers = 0

    @property
    def is_used(self) -> bool:
        """Whether some of it is taken, or about to be."""
        return self._askers > 0 or self._room.free < self._limit

    async def take(self, size: int) -> int:
        """As of `Budget`. Raises: KafkaError: it is full, and nothing is given back for a while."""
        now = asyncio.get_running_loop().time()
        if not self.is_used:
            self._moved_at = now
        if size > self._room.free and now - self._moved_at > _STUCK_S:
            raise self._stuck()
        taken = self._room.take_now(size)
        if taken is not None:
            return taken
        self._askers += 1
        try:
            async with asyncio.timeout(_STUCK_S):
                return await self._room.take(size)
        except TimeoutError as err:
            raise self._stuck() from err
        finally:
            self._askers -= 1

    def add(self, size: int) -> None:
        """As of `Budget`."""
        self._room.add(size)

    def give(self, size: int) -> None:
        """As of `Budget`."""
        self._moved_at = asyncio.get_running_loop().time()
        self._room.give(size)

    def _stuck(self) -> KafkaError:
        return KafkaError(
            ErrorCode.not_enough_replicas,
            f"{self._name}: {self._limit - self._room.free} bytes wait for appends that make no progress; try again",
        )


@final
@dataclass(slots=True, eq=False)
class Held:
    """What someone has of each room."""

    rooms: list[tuple[Budget | Share, int]] = field(default_factory=list)

    def add(self, size: int) -> None:
        """Take more without waiting."""
        for room, _ in self.rooms if size > 0 else ():
            room.add(size)
        self.rooms = [(room, taken + max(0, size)) for room, taken in self.rooms]

    def give(self) -> None:
        """Give all of it back."""
        for room, taken in self.rooms:
            room.give(taken)
        self.rooms = []


@final
class Room:
    """Room for all. Each name may take a part of it; if nothing of a part is given back, others go on.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._common = Budget(limit)
        self._shares: dict[str, Share] = {}

    @property
    def free(self) -> int:
        """Bytes that are not taken."""
        return self._common.free

    async def take(self, size: int, parts: Mapping[str, int]) -> Held:
        """Wait for room.

        Args:
            parts: the names that it is for, and how many such parts the room has.

        Raises: KafkaError: a name has its part already, and is stuck. Cancellation: safe.
        """
        held = Held()
        try:
            for name, count in parts.items():
                share = self._share(name, self._limit // count)
                held.rooms.append((share, await share.take(size)))
            held.rooms.append((self._common, await self._common.take(size)))
        except BaseException:
            held.give()
            raise
        return held

    def _share(self, name: str, limit: int) -> Share:
        share = self._shares.get(name)
        if share is None:
            if len(self._shares) >= _SHARES_MAX:
                self._shares = {n: each for n, each in self._shares.items() if each.is_used}
            share = self._shares[name] = Share(name, limit)
        return share


_NAME_BYTES: Final = 4 << 10
"""What a name counts at least: it is listed, and has a record."""
_OF_OWNER: Final = 4


@final
class Kept:
    """What names keep in etcd. All together, and those of one owner, have a limit, so that no one fills etcd with names.

    Attributes:
        size: bytes of all.

    Args:
        kind: of the names, for errors.
        limit: bytes of all; an owner has a quarter.
    """

    def __init__(self, kind: str, limit: int) -> None:
        self._kind = kind
        self._limit = limit
        self._names: dict[str, tuple[str, int]] = {}
        self._owners: Counter[str] = Counter()
        self.size = 0

    def note(self, name: str, owner: str, size: int) -> None:
        """Note that a name is kept.

        Args:
            size: bytes, without what each name counts.
        """
        self.drop(name)
        self._names[name] = owner, size + _NAME_BYTES
        self._owners[owner] += size + _NAME_BYTES
        self.size += size + _NAME_BYTES

    def drop(self, name: str) -> None:
        """Note that a name is not kept any more."""
        owner, size = self._names.pop(name, ("", 0))
        self.size -= size
        self._owners[owner] -= size
        if not self._owners[owner]:
            del self._owners[owner]

    def add(self, name: str, owner: str, size: int, *, nodes: int) -> None:
        """Count more bytes of a name. Raises: KafkaError: there are too many."""
        _, known = self._names.get(name, ("", _NAME_BYTES))
        self.check(owner, size, nodes=nodes)
        self.note(name, owner, known + size - _NAME_BYTES)

    def reset(self, names: Mapping[str, tuple[str, int]]) -> None:
        """Note these, with owner and bytes, and forget all others."""
        self._names, self._owners, self.size = {}, Counter(), 0
        for name, (owner, size) in names.items():
            self.note(name, owner, size)

    def part_of(self, owner: str, *, nodes: int) -> float:
        """How much of what it may keep an owner keeps; 1: all."""
        return self._owners[owner] / (self._limit / nodes / _OF_OWNER)

    def check(self, owner: str, size: int = _NAME_BYTES, *, nodes: int) -> None:
        """Ask for room for a name, or for more bytes of one.

        Args:
            nodes: that share the limit.

        Raises: KafkaError: there is none.
        """
        limit = self._limit // nodes
        for held, most, whose in (
            (self._owners[owner], limit // _OF_OWNER, "of one owner"),
            (self.size, limit, "of all clients"),
        ):
            if held + size > most:
                raise KafkaError(
                    ErrorCode.policy_violation,
                    f"{self._kind} {whose} keep {held} bytes in etcd, and may keep {most} at this node "
                    "(delete some, or wait until they are forgotten)",
                )


@final
class Complaints:
    """Logs what clients do wrong: some of each minute as warnings, so that strangers do not fill the log."""

    def __init__(self) -> None:
        self._began = self._count = 0.0

    def add(self, host: str, what: object) -> None:
        """Log one."""
        now = asyncio.get_running_loop().time()
        if now - self._began >= _MINUTE_S:
            if self._count > _A_MINUTE:
                left_out = self._count - _A_MINUTE
                _log.warning("%d more errors of Kafka clients are in the debug log only", left_out)
            self._began, self._count = now, 0
        self._count += 1
        level = logging.WARNING if self._count <= _A_MINUTE else logging.DEBUG
        _log.log(level, "Kafka client %s: %s", host, str(what)[:_TEXT_MAX])


def parts_of(entity: Any) -> int:
    """How many parts a request has, and the parts of these. Stops counting where there are too many."""
    count = 0
    kind: Any = type(entity)
    for name in _tuples(kind):
        parts = getattr(entity, name) or ()
        count += len(parts)
        if parts and hasattr(parts[0], "__dataclass_fields__"):
            for part in parts:
                if count > PARTS_MAX:
                    break
                count += parts_of(part)
    return count


@cache
def _tuples(kind: Any) -> tuple[str, ...]:
    """The fields of a class that may have parts."""
    fields = kind.__dataclass_fields__.values()
    return tuple(each.name for each in fields if str(each.type).startswith("tuple"))
