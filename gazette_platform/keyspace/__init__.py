"""A decoded mirror of the cluster's keys in etcd.

Nouns: item (a journal; of consumers a shard), member (a process), assignment (a member's slot of an
item), revision.
Guarantee: what a reader sees between two awaits is the state of exactly one revision. Bad entries
are logged and left out. Cost: in the number of changes, not of keys.
"""

from __future__ import annotations

from gazette_platform.keyspace.keys import (
    AssignmentKey,
    ItemKey,
    Key,
    MemberKey,
    assignment_key,
    assignments_prefix,
    item_key,
    items_prefix,
    member_key,
    members_prefix,
    parse_key,
    validate_prefix,
)
from gazette_platform.keyspace.space import WATCH_DELAY_S, KeySpace, View
from gazette_platform.keyspace.state import (
    AnyClusterState,
    Assignment,
    BrokerState,
    Changes,
    ClusterItem,
    ClusterMember,
    ClusterState,
    Item,
    ItemSpec,
    Member,
    MemberSpec,
    SlotAssignment,
    decode_broker_spec,
    decode_journal_spec,
    decode_route,
    encode_broker_spec,
    encode_journal_spec,
    encode_member_spec,
    encode_route,
)

__all__ = [
    "WATCH_DELAY_S",
    "AnyClusterState",
    "Assignment",
    "AssignmentKey",
    "BrokerState",
    "Changes",
    "ClusterItem",
    "ClusterMember",
    "ClusterState",
    "Item",
    "ItemKey",
    "ItemSpec",
    "Key",
    "KeySpace",
    "Member",
    "MemberKey",
    "MemberSpec",
    "SlotAssignment",
    "View",
    "assignment_key",
    "assignments_prefix",
    "decode_broker_spec",
    "decode_journal_spec",
    "decode_route",
    "encode_broker_spec",
    "encode_journal_spec",
    "encode_member_spec",
    "encode_route",
    "item_key",
    "items_prefix",
    "member_key",
    "members_prefix",
    "parse_key",
    "validate_prefix",
]
