"""Specs, status and checkpoints of consumers: bytes that Gazette writes, and their rules."""

import dataclasses
import json
from dataclasses import replace

import pytest

from gazette_platform.consumer.protocol import (
    Checkpoint,
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSource,
    ShardSpec,
    ShardStatus,
    shard_spec_json,
)
from gazette_platform.errors import ValidationError
from gazette_platform.message import AckIntent
from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.protocol import EtcdHeader, Header, LabelSet, ProcessId, Route
from gazette_platform.protocol.pb import consumer_pb2 as pb

SECOND = 1_000_000_000

FULL = ShardSpec(
    "shard-000",
    (ShardSource("a/b", 5),),
    recovery_log_prefix="rl",
    hint_prefix="/h",
    hint_backups=2,
    max_txn_duration_ns=SECOND,
    hot_standbys=1,
    labels=LabelSet.of(store="sqlite"),
)
PRODUCER = bytes.fromhex("010203040506")
CHECKPOINT = Checkpoint(
    SequencerCheckpoint(
        offsets={"foo": 111, "bar": 0}, producers=(ProducerState("foo", PRODUCER, 456, -1),)
    ),
    (AckIntent("baz", b"intent\n"),),
)

# As the bytes of Gazette's own programs.
VECTORS = {
    "IDLE": (ReplicaStatus(), ""),
    "BACKFILL": (ReplicaStatus(ReplicaCode.BACKFILL), "0864"),
    "STANDBY": (ReplicaStatus(ReplicaCode.STANDBY), "08c801"),
    "PRIMARY": (ReplicaStatus(ReplicaCode.PRIMARY), "08ac02"),
    "FAILED": (ReplicaStatus(ReplicaCode.FAILED, ("x",)), "089003120178"),
    "ConsumerSpec": (
        ConsumerSpec(ProcessId("z", "s"), "http://h:1", 32),
        "0a140a060a017a120173120a687474703a2f2f683a311020",
    ),
    "ShardSpec": (
        ShardSpec("shard-000", max_txn_duration_ns=1_500_000_000),
        "0a0973686172642d303030320808011080cab5ee013a005200",
    ),
    "full ShardSpec": (
        FULL,
        (
            "0a0973686172642d30303012070a03612f6218051a02726c22022f68280232020801"
            "3a00480152110a0f0a0573746f7265120673716c697465"
        ),
    ),
    "Header": (
        Header(ProcessId("z", "s"), Route(), EtcdHeader(1, 2, 3, 4)),
        "0a060a017a120173120b10ffffffffffffffffff011a080801100218032004",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_are_those_of_gazette(name):
    value, expected = VECTORS[name]
    message = value.to_pb()
    assert message.SerializeToString(deterministic=True).hex() == expected
    again = type(message).FromString(bytes.fromhex(expected))
    assert type(value).from_pb(again) == value


CHECKPOINT_HEX = (
    "0a290a03666f6f1222086f121e0a06010203040506121409c80100000000000010ffffffffffffffffff01"
    "0a070a036261721200120e0a0362617a1207696e74656e740a"
)


def test_cv5_checkpoint_of_gazette_is_read_and_written():
    # Maps have no order on the wire, so that ours may differ.
    ours = pb.Checkpoint.FromString(CHECKPOINT.encode())
    assert ours == pb.Checkpoint.FromString(bytes.fromhex(CHECKPOINT_HEX))
    assert Checkpoint.decode(bytes.fromhex(CHECKPOINT_HEX)) == CHECKPOINT
    assert len(CHECKPOINT.encode()) == len(bytes.fromhex(CHECKPOINT_HEX))
    assert CHECKPOINT.read_through == {"foo": 111, "bar": 0}


def test_no_bytes_are_an_empty_checkpoint():
    assert Checkpoint.decode(b"") == Checkpoint()
    assert Checkpoint().encode() == b""


# The third line of the state of a JSONFileStore.
CHECKPOINT_JSON = (
    '{"sources":{"foo":{"read_through":111,"producers":[{"id":"AQIDBAUG",'
    '"state":{"last_ack":456,"begin":-1}}]}},"ack_intents":{"baz":"aW50ZW50Cg=="}}'
)


def test_checkpoint_has_the_json_of_gazette():
    one = replace(
        CHECKPOINT,
        read=SequencerCheckpoint(offsets={"foo": 111}, producers=CHECKPOINT.read.producers),
    )
    assert json.dumps(one.json(), separators=(",", ":")) == CHECKPOINT_JSON
    assert Checkpoint.from_json(json.loads(CHECKPOINT_JSON)) == one
    assert Checkpoint.from_json({"sources": None, "ack_intents": None}) == Checkpoint()
    assert Checkpoint.from_json(CHECKPOINT.json()) == CHECKPOINT


def test_checkpoint_says_which_journal_its_offset_is_of():
    """In a field that Gazette does not know: without it the bytes are Gazette's."""
    noted = dataclasses.replace(CHECKPOINT, created={"foo": 43})
    assert Checkpoint.decode(noted.encode()) == noted
    assert Checkpoint.from_json(json.loads(json.dumps(noted.json()))) == noted
    assert noted.encode() != CHECKPOINT.encode()


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"sources": {"foo": {"producers": [{"id": "AQID", "state": {}}]}}}, "expected 6 bytes"),
        ({"sources": {"foo": {"producers": [{"state": {}}]}}}, "KeyError"),
        ({"sources": {"foo": {"read_through": "far"}}}, "not a Checkpoint"),
        ({"sources": {"foo": {"read_through": -1}}}, r"Sources\[foo\]: invalid ReadThrough"),
        ({"sources": [1]}, "not a Checkpoint"),
        ({"ack_intents": {"baz": "?"}}, "not a Checkpoint"),
    ],
)
def test_invalid_checkpoint_json_is_refused(document, problem):
    with pytest.raises(ValidationError, match=problem):
        Checkpoint.from_json(document)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\xff", "1 bytes are not a Checkpoint"),
        (
            bytes.fromhex("0a0c0a03666f6f1205120312 0101".replace(" ", "")),
            "not a Checkpoint|6 bytes",
        ),
    ],
)
def test_invalid_checkpoint_bytes_are_refused(raw, problem):
    with pytest.raises(ValidationError, match=problem):
        Checkpoint.decode(raw)


def test_begin_of_a_producer_is_an_offset_or_none():
    bad = replace(
        CHECKPOINT,
        read=SequencerCheckpoint(
            offsets={"foo": 1}, producers=(ProducerState("foo", PRODUCER, 1, -2),)
        ),
    )
    with pytest.raises(ValidationError, match=r"Sources\[foo\]: invalid Begin \(-2"):
        Checkpoint.decode(bad.encode())


def test_spec_has_the_plain_json_of_gazette():
    expected = (
        '{"id":"shard-000","sources":[{"journal":"a/b","min_offset":5}],"recovery_log_prefix":"rl",'
        '"hint_prefix":"/h","hint_backups":2,"max_txn_duration":1000000000,"min_txn_duration":0,'
        '"hot_standbys":1,"labels":{"labels":[{"name":"store","value":"sqlite"}]}}'
    )
    assert json.dumps(shard_spec_json(FULL), separators=(",", ":")) == expected
    bare = shard_spec_json(ShardSpec("shard-000"))
    assert bare["labels"] == {"labels": None}


VALID = replace(
    FULL, sources=(ShardSource("a/one"), ShardSource("a/one;meta"), ShardSource("a/two"))
)


def test_valid_specs_pass():
    VALID.validate()
    replace(VALID, sources=()).validate()
    # Not compared with each other, as in Gazette.
    replace(VALID, min_txn_duration_ns=SECOND * 9).validate()
    replace(VALID, recovery_log_prefix="", hint_prefix="").validate()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": "abc"}, "Id: invalid length (3; expected 4 <= length <= 512)"),
        ({"id": "with blank"}, "Id: not a valid token (with blank)"),
        ({"id": "s" * 513}, "Id: invalid length (513; expected 4 <= length <= 512)"),
        ({"id": "a#bcd"}, "Id: not a valid token (a#bcd)"),
        (
            {"sources": (ShardSource("a/b c"),)},
            "Sources[0].Journal: not a valid token (a/b c)",
        ),
        (
            {"sources": (ShardSource("a/one", -1),)},
            "Sources[0]: invalid MinOffset (-1; expected >= 0)",
        ),
        (
            {"sources": (ShardSource("a/two"), ShardSource("a/one"))},
            "Sources.Journal not in unique, sorted order (index 1; a/one <= a/two)",
        ),
        (
            {"sources": (ShardSource("a/one"), ShardSource("a/one"))},
            "Sources.Journal not in unique, sorted order (index 1; a/one <= a/one)",
        ),
        (
            {"recovery_log_prefix": "/abs"},
            "RecoveryLogPrefix: cannot begin with '/' (/abs/shard-000)",
        ),
        ({"id": "a/../b"}, "RecoveryLogPrefix: must be a clean path (rl/a/../b)"),
        ({"recovery_log_prefix": ""}, "invalid HintPrefix (/h; expected empty HintPrefix"),
        ({"hint_prefix": ""}, "HintPrefix: must be an absolute path ()"),
        ({"hint_prefix": "rel"}, "HintPrefix: must be an absolute path (rel)"),
        ({"hint_prefix": "/h/"}, "HintPrefix: must be a clean path, without a trailing / (/h/)"),
        ({"hint_prefix": "/h/../x"}, "HintPrefix: must be a clean path"),
        ({"hint_prefix": "//h"}, "HintPrefix: must be an absolute path"),
        ({"hint_backups": -1}, "invalid HintBackups (-1; expected >= 0)"),
        ({"max_txn_duration_ns": 0}, "invalid MaxTxnDuration (0s; expected > 0)"),
        ({"min_txn_duration_ns": -1}, "invalid MinTxnDuration (-1ns; expected >= 0)"),
        ({"hot_standbys": 1 << 32}, "invalid HotStandbys (4294967296; expected 32 bits)"),
        ({"labels": LabelSet.of(id="")}, 'LabelSet: cannot include label "id"'),
        ({"labels": LabelSet.of(("aa", ""), ("aa", "1"))}, "LabelSet: label has empty & non-empty"),
        (
            {
                "labels": LabelSet.of(
                    ("app.gazette.dev/region", "1"), ("app.gazette.dev/region", "2")
                )
            },
            "LabelSet: expected single-value Label has multiple values (index 1;",
        ),
    ],
)
def test_cv1_invalid_specs_are_refused(changes, problem):
    with pytest.raises(ValidationError) as refused:
        replace(VALID, **changes).validate()
    assert str(refused.value).startswith(problem)


def test_derived_values_of_a_spec():
    assert FULL.recovery_log == "rl/shard-000"
    assert replace(FULL, recovery_log_prefix="").recovery_log == ""
    assert FULL.label_set_with_id() == LabelSet.of(store="sqlite", id="shard-000")
    assert (FULL.ring_size, FULL.queue_size) == (8192, 8192)
    assert replace(FULL, ring_buffer_size=3, read_channel_size=4).ring_size == 3
    most = (1 << 32) - 1
    huge = replace(FULL, ring_buffer_size=most, read_channel_size=most)
    assert (huge.ring_size, huge.queue_size) == (1 << 20, 1 << 20)
    assert FULL.source_of("a/b") == ShardSource("a/b", 5)
    assert FULL.source_of("a/c") is None


@pytest.mark.parametrize(
    ("standbys", "disable", "replication_max", "expected"),
    [(0, False, 4, 1), (2, False, 4, 3), (9, False, 4, 4), (2, True, 4, 0), (2, False, 1, 1)],
)
def test_cv2_replication_is_the_primary_and_its_standbys(
    standbys, disable, replication_max, expected
):
    spec = replace(FULL, hot_standbys=standbys, disable=disable)
    assert spec.desired_replication(replication_max) == expected


def test_cv4_status_folds_to_the_greatest_code_and_all_errors():
    failed = ReplicaStatus(ReplicaCode.FAILED, ("one",))
    primary = ReplicaStatus(ReplicaCode.PRIMARY)
    assert ReplicaStatus.folded([]) == ReplicaStatus()
    assert ReplicaStatus.folded([failed, primary, replace(failed, errors=("two",))]) == (
        ReplicaStatus(ReplicaCode.FAILED, ("one", "two"))
    )
    assert [ReplicaStatus(code).is_recovered for code in ReplicaCode] == [
        *(False, False, True, True, False)
    ]


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (ReplicaStatus(ReplicaCode.PRIMARY, ("x",)), "expected no Errors with Code PRIMARY"),
        (ReplicaStatus(ReplicaCode.FAILED), "expected Errors with Code FAILED"),
        (ReplicaStatus(ReplicaCode.from_wire(7)), "Code: invalid value (7)"),
    ],
)
def test_cv1_errors_and_failed_come_together(status, problem):
    with pytest.raises(ValidationError) as refused:
        status.validate()
    assert str(refused.value) == problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": ProcessId("", "suffix")}, "ProcessSpec.Id.Zone: invalid length"),
        ({"endpoint": "host"}, "ProcessSpec.Endpoint: not absolute (host)"),
        ({"shard_limit": -1}, "invalid ShardLimit (-1;"),
    ],
)
def test_cv1_invalid_consumer_specs_are_refused(changes, problem):
    valid = ConsumerSpec(ProcessId("zone", "suffix"), "http://host:1")
    valid.validate()
    with pytest.raises(ValidationError) as refused:
        replace(valid, **changes).validate()
    assert str(refused.value).startswith(problem)


def test_enums_are_those_of_the_wire():
    assert {each.name: each.value for each in ShardStatus} == dict(pb.Status.items())
    assert {each.name: each.value for each in ReplicaCode} == dict(pb.ReplicaStatus.Code.items())
