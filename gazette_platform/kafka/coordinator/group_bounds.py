"""How much groups may keep in etcd and hold in memory, of one owner and in all; and when a group is forgotten.

Any client that may read may make groups under any name. A group has an owner: the principal of the client that made it. What an
owner's groups keep is bounded by itself, so that no one fills etcd for others. A group that has committed nothing is forgotten
soon after its last member has left.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError
from gazette_platform.kafka.coordinator.group_store import newest_ms
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.wire.bounds import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gazette_platform.kafka.coordinator.group_store import (
        Claim,
        Committed,
        GroupStore,
        StoredTopic,
    )
    from gazette_platform.kafka.coordinator.groups import Group
    from gazette_platform.kafka.gateway import Gateway

_log = logging.getLogger(__name__)

_GROUPS_MAX: Final = 5_000
"""Of one owner, in the memory of a node."""
_BYTES_MAX: Final = 256 << 20
"""Of all groups that a node has in memory; one owner has half."""
_STORED_BYTES_MAX: Final = 256 << 20
"""Of all groups of a cluster in etcd."""
_GROUP_BYTES_MAX: Final = 1 << 20
"""Of one group's offsets."""
_OFFSET_BYTES: Final = 100
"""What an offset has in etcd beside its metadata, about."""
_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long offsets of a group without members are kept, as Kafka keeps them."""
_UNUSED_MS: Final = 3600 * 1000
"""How long a record without offsets stays whose node could not forget it."""


class InMemory(Protocol):
    """A group that a node has in memory."""

    group: Group
    claim: Claim


@final
class GroupBounds:
    """See the module.

    Attributes:
        kept: what the groups of this node keep in etcd.

    Args:
        groups: that are in memory.
        is_ours: whether this node coordinates a group.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: GroupStore,
        groups: Mapping[str, InMemory],
        is_ours: Callable[[str], bool],
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._groups = groups
        self._is_ours = is_ours
        self._bytes: Counter[str] = Counter()  # of the groups of each owner, at the last tick
        self.kept = Kept("groups", _STORED_BYTES_MAX)
        self._unused: dict[str, int] = {}  # and the revision of the record
        self._is_forgetting = False

    @property
    def _nodes(self) -> int:
        return len(self._gateway.nodes.live)

    # ------------------------------------------------------------ bounds

    def count(self) -> None:
        """Count what groups hold in memory."""
        self._bytes = Counter()
        for live in self._groups.values():
            self._bytes[live.claim.record.owner] += live.group.size

    def check_memory(self, owner: str) -> None:
        """Raises: KafkaError: groups of all, or of one owner, hold as much as they may in memory."""
        held = self._bytes.total()
        if held > _BYTES_MAX or self._bytes[owner] > _BYTES_MAX // 2:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"groups of this node hold {held} bytes; ask again when members have left",
            )

    def admit_group(self, claim: Claim) -> None:
        """Count a group that is to be in memory. Raises: KafkaError: it is new, and its owner may make no more."""
        owner = claim.record.owner
        if not claim.revision:
            self.kept.check(owner, nodes=self._nodes)
        if len(self._groups) >= _GROUPS_MAX:
            count = sum(live.claim.record.owner == owner for live in self._groups.values())
            if count >= _GROUPS_MAX:
                raise KafkaError(
                    ErrorCode.policy_violation,
                    f"{count} groups of one owner are in use at this node",
                )
        self.kept.note(claim.group_id, owner, sum(map(_size_of, claim.topics.values())))
        self._unused.pop(claim.group_id, None)

    def admit_offsets(self, claim: Claim, changes: Mapping[str, Mapping[int, Committed]]) -> None:
        """Count offsets that are to be stored. New numbers for partitions that a group has are always taken.

        Raises: KafkaError: the group, or its owner, keeps too much.
        """
        grown = 0
        for name, offsets in changes.items():
            topic = claim.topics.get(name)
            for number, one in offsets.items():
                former = None if topic is None else topic.offsets.get(number)
                known = 0 if former is None else _OFFSET_BYTES + len(former.metadata.encode())
                grown += max(0, _OFFSET_BYTES + len(one.metadata.encode()) - known)
        if not grown:
            return
        size = grown + sum(map(_size_of, claim.topics.values()))
        if size > _GROUP_BYTES_MAX:
            raise KafkaError(
                ErrorCode.invalid_commit_offset_size,
                f"offsets of a group have {size} bytes, and {_GROUP_BYTES_MAX} at most are kept",
            )
        self.kept.add(claim.group_id, claim.record.owner, grown, nodes=self._nodes)

    # ------------------------------------------------------------ forgetting

    def dropped(self, claim: Claim) -> None:
        """Note that a group is not in memory any more."""
        if not claim.revision:
            self.kept.drop(claim.group_id)
        elif not claim.topics:
            self._unused[claim.group_id] = claim.revision

    def forget_unused(self) -> None:
        """Begin to remove records of groups that have no members, and never committed anything."""
        if self._unused and not self._is_forgetting:
            self._is_forgetting = True
            self._gateway.tasks.spawn(self._forget_unused(), name="kafka unused groups")

    async def _forget_unused(self) -> None:
        try:
            while self._unused:
                group_id, revision = self._unused.popitem()
                if await self._store.forget(group_id, revision) and group_id not in self._groups:
                    self.kept.drop(group_id)
        except EtcdError as err:
            _log.warning("groups that committed nothing stay for a while: %s", err)
        finally:
            self._is_forgetting = False

    async def sweep(self) -> None:
        """Count what groups keep, and remove those without members that have committed nothing for a week, or ever."""
        now_ms = int(self._gateway.clock.unix_s() * 1000)
        try:
            sizes, groups = await self._store.sizes(), await self._store.all_groups()
            ours = {name: one for name, one in groups.items() if self._is_ours(name)}
            kept = {name: (record.owner, sizes[name]) for name, (record, _) in ours.items()}
            for name, live in self._groups.items():
                kept.setdefault(name, (live.claim.record.owner, 0))
            self.kept.reset(kept)
            for group_id, (record, revision) in ours.items():
                limit = now_ms - (_KEPT_MS if sizes[group_id] else _UNUSED_MS)
                if record.at_ms > limit or group_id in self._groups:
                    continue
                if not sizes[group_id]:
                    self._unused[group_id] = revision
                    continue
                offsets = await self._store.offsets(group_id)
                if newest_ms(record, [*offsets.values()]) <= limit:
                    _log.info("group %s was not used for a week, and is removed", group_id)
                    if await self._store.delete(group_id, revision):
                        self.kept.drop(group_id)
        except EtcdError as err:
            _log.warning("groups that are not used any more stay: %s", err)


def _size_of(topic: StoredTopic) -> int:
    """Bytes of a topic's offsets in etcd, about."""
    return sum(_OFFSET_BYTES + len(one.metadata.encode()) for one in topic.offsets.values())
