"""The error tree: every wire status has a class, and every class says what it claims."""

from __future__ import annotations

import pytest

from gazette_platform import errors
from gazette_platform.protocol.pb import consumer_pb2, protocol_pb2 as pb

WIRE_NAMES = sorted({*pb.Status.keys(), *consumer_pb2.Status.keys()} - {"OK"})

# client.md: an append that gets one of these is made again; all others surface.
RETRIABLE = {
    "INSUFFICIENT_JOURNAL_BROKERS",
    "NOT_JOURNAL_BROKER",
    "NOT_JOURNAL_PRIMARY_BROKER",
    "NO_JOURNAL_PRIMARY_BROKER",
    "WRONG_ROUTE",
    # Of shards: the caller resolves again.
    "NOT_SHARD_PRIMARY",
    "NO_SHARD_PRIMARY",
    "SHARD_STOPPED",
}


def subclasses(cls: type) -> set[type]:
    found = {sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__}
    return found.union(*(subclasses(sub) for sub in found))


@pytest.mark.parametrize("name", WIRE_NAMES)
def test_wire_status_maps_to_a_class_of_its_own(name):
    error = errors.status_error(name, "detail", journal="a/b")
    assert type(error) is not errors.StatusError
    assert error.status == name
    assert error.journal == "a/b"
    assert str(error).startswith(f"a/b: {name}: detail")
    assert error.retriable is (name in RETRIABLE)


def test_classes_map_back_to_distinct_wire_statuses():
    named = [cls.status for cls in subclasses(errors.StatusError) if "status" in vars(cls)]
    assert sorted(named) == WIRE_NAMES


def test_unknown_status_is_a_plain_status_error():
    error = errors.status_error("BROKER_ON_FIRE", "hot")
    assert type(error) is errors.StatusError
    assert str(error) == "unknown status BROKER_ON_FIRE hot"
    assert not error.retriable


def test_status_error_without_journal_or_detail_is_its_name_and_advice():
    assert str(errors.ProposalMismatch()) == "PROPOSAL_MISMATCH"
    assert str(errors.JournalNotFound(journal="a/b")) == (
        "a/b: JOURNAL_NOT_FOUND "
        "(check the name with `gazctl journals list`, or create it with `gazctl journals create`)"
    )


def test_every_error_is_exported_and_in_the_tree():
    exported = {getattr(errors, name) for name in errors.__all__} - {errors.status_error}
    assert exported == subclasses(errors.GazetteError) | {errors.GazetteError}
    for cls in exported:
        assert cls.__doc__
        if errors.StatusError not in cls.__mro__:
            assert cls.__name__ in (errors.__doc__ or ""), (
                f"{cls.__name__} is not in the tree drawn"
            )


def test_validation_error_names_the_field_from_outside_in():
    inner = errors.ValidationError("invalid length (0; expected > 0)", path="length")
    outer = inner.within("Fragment").within("[3]").within("Journals")
    assert str(outer) == "Journals[3].Fragment.length: invalid length (0; expected > 0)"
    assert outer.message == inner.message
    assert isinstance(outer, ValueError)
    assert str(errors.ValidationError("empty")) == "empty"
    assert errors.ValidationError("empty").within("Name").path == "Name"


def test_offset_jump_keeps_both_offsets():
    jump = errors.OffsetJump("a/b", 10, 25)
    assert (jump.journal, jump.from_offset, jump.to_offset) == ("a/b", 10, 25)
    assert "from 10 to 25" in str(jump)


@pytest.mark.parametrize(
    ("cls", "retriable"),
    [
        (errors.TransportError, True),
        (errors.EtcdError, True),
        (errors.LeaseLost, False),
        (errors.TransactionFailed, False),
        (errors.StoreUnavailable, True),
        (errors.ObjectNotFound, False),
        (errors.DataError, False),
        (errors.LakeError, False),
        (errors.SetupError, False),
        (errors.ValidationError, False),
    ],
)
def test_retriable_is_claimed_by_class(cls, retriable):
    assert cls.retriable is retriable
