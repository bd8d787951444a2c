"""Each call of Kafka's protocol asks what the token of its client allows."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from kafka_wire import WireClient, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
TIME = timedelta(seconds=30)
TOPIC, GROUP = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed
TXN, CLUSTER = (
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.cluster_authorization_failed,
)

PRODUCER = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
MEMBER = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
COMMITTED = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}


CONFIGS = {"resource_type": 2, "resource_name": "secret", "configuration_keys": None}
# Versions and fields of requests about the group `g` or the transactional id `x`.
CALLS = {
    "add_offsets_to_txn": (3, {**PRODUCER, "group_id": "g"}),
    "end_txn": (3, {**PRODUCER, "committed": True}),
    "init_producer_id": (
        4,
        {"transactional_id": "x", "transaction_timeout": TIME}
        | {"producer_id": -1, "producer_epoch": -1},
    ),
    "join_group": (
        5,
        {**MEMBER, "session_timeout": TIME, "rebalance_timeout": TIME}
        | {"protocol_type": "consumer", "protocols": ()},
    ),
    "sync_group": (3, {**MEMBER, "assignments": ()}),
    "heartbeat": (3, MEMBER),
    "leave_group": (1, MEMBER),
    "describe_groups": (4, {"groups": ("g",), "include_authorized_operations": False}),
    "delete_groups": (1, {"groups_names": ("g",)}),
    "describe_transactions": (0, {"transactional_ids": ("x",)}),
    "delete_topics": (4, {"topic_names": ("secret",), "timeout": TIME}),
}
# Those that name the partition 0 of the topic `secret`: also the entities of topic and partition, and the latter's fields.
OF_TOPICS = {
    "list_offsets": (
        5,
        {"replica_id": -1, "isolation_level": 0},
        ("ListOffsetsTopic", "ListOffsetsPartition"),
        {"current_leader_epoch": -1, "timestamp": -1},
    ),
    "offset_for_leader_epoch": (
        3,
        {"replica_id": -1},
        ("OffsetForLeaderTopic", "OffsetForLeaderPartition"),
        {"current_leader_epoch": -1, "leader_epoch": 0},
    ),
    "offset_commit": (
        7,
        MEMBER,
        ("OffsetCommitRequestTopic", "OffsetCommitRequestPartition"),
        COMMITTED,
    ),
    "offset_fetch": (5, {"group_id": "g"}, ("OffsetFetchRequestTopic", ""), {}),
    "offset_delete": (
        0,
        {"group_id": "g"},
        ("OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition"),
        {},
    ),
    "txn_offset_commit": (
        3,
        {**MEMBER, **PRODUCER},
        ("TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition"),
        COMMITTED,
    ),
    "add_partitions_to_txn": (
        3,
        {f"v3_and_below_{key}": value for key, value in PRODUCER.items()},
        ("AddPartitionsToTxnTopic", ""),
        {},
    ),
    "create_partitions": (
        2,
        {"timeout": TIME, "validate_only": False},
        ("CreatePartitionsTopic", ""),
        {},
    ),
    "describe_configs": (2, {"include_synonyms": False}, ("DescribeConfigsResource", ""), {}),
    "alter_configs": (2, {"validate_only": False}, ("AlterConfigsResource", ""), {}),
    "incremental_alter_configs": (
        1,
        {"validate_only": False},
        ("AlterConfigsResource", ""),
        {},
    ),
}


def call_of(wire, name):
    """Returns: version and fields of a request."""
    if name in CALLS:
        return CALLS[name]
    version, fields, (kind, part_kind), of_part = OF_TOPICS[name]
    parts = (0,)
    if part_kind:
        place = {"partition_index": 0, "partition": 0}
        parts = (wire.entity(name, version, part_kind, **place, **of_part),)
    topic = {"name": "secret", "topic": "secret", "partitions": parts, "partition_indexes": (0,)}
    topic |= {"count": 2, "assignments": None, "configs": (), **CONFIGS}
    topics = (wire.entity(name, version, kind, **topic),)
    return version, {
        **fields,
        **dict.fromkeys(("topics", "v3_and_below_topics", "resources"), topics),
    }


def codes_in(answer):
    """All errors of an answer."""
    if isinstance(answer, tuple):
        return {code for each in answer for code in codes_in(each)}
    if not dataclasses.is_dataclass(answer):
        return {answer} if isinstance(answer, ErrorCode) else set()
    return {
        code
        for field in dataclasses.fields(answer)
        for code in codes_in(getattr(answer, field.name))
    }


async def log_in(wire, capability, selector=""):
    chosen = LabelSelector.parse(selector) if selector else LabelSelector()
    token = KeyRing(KEY).sign(
        Claims(capability, chosen), now=SystemClock().unix_s(), lifetime_s=600
    )
    await wire.call("sasl_handshake", 1, mechanism="PLAIN")
    answer = await wire.call("sasl_authenticate", 2, auth_bytes=b"\0me\0" + token.encode())
    assert answer.error_code is ErrorCode.none


ALL = Capability.ALL
# What a client may do, and the error of each call that it may not make.
REFUSED = [
    (
        ALL & ~Capability.READ,
        "",
        {
            **dict.fromkeys(("list_offsets", "offset_for_leader_epoch"), TOPIC),
            **dict.fromkeys(("offset_commit", "offset_fetch", "offset_delete"), GROUP),
            **dict.fromkeys(("join_group", "sync_group", "heartbeat", "leave_group"), GROUP),
            **dict.fromkeys(("add_offsets_to_txn", "txn_offset_commit"), GROUP),
        },
    ),
    (
        ALL & ~Capability.APPEND,
        "",
        {
            **dict.fromkeys(("init_producer_id", "add_partitions_to_txn", "end_txn"), TXN),
            **dict.fromkeys(("add_offsets_to_txn", "txn_offset_commit"), TXN),
        },
    ),
    (ALL & ~Capability.LIST, "", {"describe_groups": GROUP, "describe_transactions": TXN}),
    (
        ALL & ~Capability.APPLY,
        "",
        {
            "delete_groups": GROUP,
            **dict.fromkeys(("create_partitions", "delete_topics"), TOPIC),
            **dict.fromkeys(("alter_configs", "incremental_alter_configs"), TOPIC),
        },
    ),
    (ALL & ~Capability.LIST, "", {"describe_configs": TOPIC}),
    (
        ALL,
        "name:prefix=topic/flights/",
        {
            **dict.fromkeys(("list_offsets", "offset_for_leader_epoch", "offset_commit"), TOPIC),
            **dict.fromkeys(("offset_fetch", "offset_delete", "add_partitions_to_txn"), TOPIC),
            **dict.fromkeys(("create_partitions", "delete_topics", "describe_configs"), TOPIC),
            **dict.fromkeys(("alter_configs", "incremental_alter_configs"), TOPIC),
            **dict.fromkeys(("describe_groups", "delete_groups"), GROUP),
            "describe_transactions": TXN,
        },
    ),
]


@pytest.fixture
async def gateway(local_brokers):
    """With a topic, an offset of a group, and a transactional id."""
    async with (
        gateway_of(await local_brokers.start(auth_keys=KEY), auto_create=True) as gateway,
        WireClient.to(gateway.port) as wire,
    ):
        await log_in(wire, ALL)
        topic = wire.entity("metadata", 4, "MetadataRequestTopic", name="secret")
        await wire.call("metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
        for name in ("offset_commit", "offset_fetch"):
            version, fields = call_of(wire, name)
            codes = codes_in(await wire.call(name, version, **fields))
            assert codes == {ErrorCode.none}
        yield gateway


async def test_calls_that_a_token_does_not_allow_are_refused(gateway):
    wrong = []
    for capability, selector, calls in REFUSED:
        async with WireClient.to(gateway.port) as wire:
            await log_in(wire, capability, selector)
            for name, code in calls.items():
                version, fields = call_of(wire, name)
                codes = codes_in(await wire.call(name, version, **fields))
                if code not in codes:
                    wrong.append((capability, selector, name, codes))
    assert wrong == []


async def test_offsets_of_a_group_name_no_hidden_topics(gateway):
    """Of hidden topics, and of those that do not exist, clients learn the same."""
    async with WireClient.to(gateway.port) as wire:
        await log_in(wire, ALL, "name:prefix=topic/flights/")
        everything = await wire.call("offset_fetch", 5, group_id="g", topics=None)
        assert everything.topics == ()
        for name in ("secret", "nothing"):
            topic = wire.entity(
                "offset_fetch", 5, "OffsetFetchRequestTopic", name=name, partition_indexes=(0, 9)
            )
            answer = await wire.call("offset_fetch", 5, group_id="g", topics=(topic,))
            assert [part.error_code for part in answer.topics[0].partitions] == [TOPIC, TOPIC]


async def test_producer_ids_are_for_those_who_append(gateway):
    for capability, code in ((ALL & ~Capability.APPEND, CLUSTER), (ALL, ErrorCode.none)):
        async with WireClient.to(gateway.port) as wire:
            await log_in(wire, capability)
            version, fields = call_of(wire, "init_producer_id")
            answer = await wire.call(
                "init_producer_id", version, **fields | {"transactional_id": None}
            )
            assert answer.error_code is code


async def test_names_of_groups_and_transactions_are_for_those_who_list_everything(gateway):
    for selector, is_seen in (("", True), ("name:prefix=topic/secret/", False)):
        async with WireClient.to(gateway.port) as wire:
            await log_in(wire, ALL, selector)
            version, fields = call_of(wire, "init_producer_id")
            answer = await wire.call("init_producer_id", version, **fields)
            assert answer.error_code is ErrorCode.none
            groups = (await wire.call("list_groups", 3)).groups
            assert [each.group_id for each in groups] == ["g"] * is_seen
            filters = {"state_filters": (), "producer_id_filters": ()}
            found = (await wire.call("list_transactions", 0, **filters)).transaction_states
            assert [each.transactional_id for each in found] == ["x"] * is_seen
