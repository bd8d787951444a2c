"""Rules of requests and responses about shards, and their JSON."""

from dataclasses import replace

import orjson
import pytest

from gazette_platform.consumer.protocol import (
    ReplicaCode,
    ReplicaStatus,
    ShardSource,
    ShardSpec,
    validate_shard_apply_request,
    validate_shard_apply_response,
    validate_shard_hints_response,
    validate_shard_list_request,
    validate_shard_list_response,
    validate_shard_stat_response,
    validate_shard_unassign_request,
    validate_shard_unassign_response,
)
from gazette_platform.consumer.protocol.specs import SPEC_SOURCES_MAX
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    EtcdHeader,
    Header,
    Label,
    LabelSelector,
    LabelSet,
    ProcessId,
    Route,
    message_jsonpb,
)
from gazette_platform.protocol.pb import consumer_pb2 as pb
from gazette_platform.protocol.rules import SELECTOR_LABELS_MAX, SPEC_LABELS_MAX

HEADER = Header(ProcessId("zone", "suffix"), Route(), EtcdHeader(1, 2, 3, 4)).to_pb()
SPEC = ShardSpec("shard-000", max_txn_duration_ns=1_500_000_000).to_pb()
BAD_SPEC = ShardSpec("shard-000").to_pb()
Change = pb.ApplyRequest.Change


def refused(check, message):
    with pytest.raises(ValidationError) as found:
        check(message)
    return str(found.value)


@pytest.mark.parametrize(
    "change",
    [
        Change(upsert=SPEC),
        Change(upsert=SPEC, expect_mod_revision=-1),
        Change(upsert=SPEC, expect_mod_revision=7, primary_hints={"log": "a/log"}),
        Change(delete="shard-000", expect_mod_revision=7),
        Change(delete="shard-000", expect_mod_revision=-1),
    ],
    ids=["create", "force", "with hints", "delete", "delete any"],
)
def test_good_changes_pass(change):
    validate_shard_apply_request(pb.ApplyRequest(changes=[change, change]))


def test_as_many_as_may_be_pass():
    sources = tuple(ShardSource(f"a/{number:04}") for number in range(SPEC_SOURCES_MAX))
    labels = LabelSet.of({f"a{number:04}": "" for number in range(SPEC_LABELS_MAX)})
    for fields in ({"sources": sources}, {"labels": labels}):
        spec = ShardSpec("shard-000", max_txn_duration_ns=1, **fields)
        validate_shard_apply_request(pb.ApplyRequest(changes=[Change(upsert=spec.to_pb())]))
    many = LabelSet.of({f"a{number:04}": "" for number in range(SELECTOR_LABELS_MAX)})
    selector = LabelSelector(include=many).to_pb()
    validate_shard_list_request(pb.ListRequest(selector=selector))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Change(), "Changes[0]: neither Upsert nor Delete are set (expected exactly one)"),
        (
            Change(upsert=SPEC, delete="shard-000"),
            "Changes[0]: both Upsert and Delete are set (expected exactly one)",
        ),
        (
            Change(delete="not valid", expect_mod_revision=1),
            "Changes[0].Delete: not a valid token (not valid)",
        ),
        (
            Change(delete="shard-000"),
            "Changes[0]: invalid ExpectModRevision (0; expected > 0 or -1)",
        ),
        (
            Change(delete="shard-000", expect_mod_revision=-2),
            "Changes[0]: invalid ExpectModRevision (-2; expected > 0 or -1)",
        ),
        (
            Change(upsert=SPEC, expect_mod_revision=-2),
            "Changes[0]: invalid ExpectModRevision (-2; expected >= 0 or -1)",
        ),
        (Change(upsert=BAD_SPEC), "Changes[0].Upsert: invalid MaxTxnDuration (0s; expected > 0)"),
        (
            Change(delete="shard-000", expect_mod_revision=1, primary_hints={}),
            "Changes[0]: unexpected PrimaryHints with Delete",
        ),
        (
            Change(upsert=pb.ShardSpec(sources=[{"journal": "a/b"}] * 4097)),
            "Changes[0].Upsert: invalid number of Sources (4097; expected <= 4096)",
        ),
        (
            Change(upsert=pb.ShardSpec(labels={"labels": [{"name": "aa"}] * 1025})),
            "Changes[0].Upsert: invalid number of Labels (1025; expected <= 1024)",
        ),
        (
            Change(upsert=pb.ShardSpec(id="x" * (256 * 1024))),
            "Changes[0].Upsert: invalid size (262148 bytes; expected <= 262144)",
        ),
    ],
)
def test_cv1_bad_changes_are_refused(change, problem):
    assert refused(validate_shard_apply_request, pb.ApplyRequest(changes=[change])) == problem


def test_a_shard_cannot_be_applied_that_asks_for_countless_backups_of_hints():
    spec = ShardSpec("shard-000", max_txn_duration_ns=1, hint_backups=127)
    validate_shard_apply_request(pb.ApplyRequest(changes=[Change(upsert=spec.to_pb())]))
    spec = replace(spec, hint_backups=(1 << 31) - 1)
    request = pb.ApplyRequest(changes=[Change(upsert=spec.to_pb())])
    assert refused(validate_shard_apply_request, request) == (
        "Changes[0].Upsert: invalid HintBackups (2147483647; expected <= 127)"
    )


def test_cv1_selector_of_a_list_is_checked():
    validate_shard_list_request(pb.ListRequest())
    selector = LabelSelector(LabelSet((Label("id", "x"), Label("aa"))))
    problem = refused(validate_shard_list_request, pb.ListRequest(selector=selector.to_pb()))
    assert problem.startswith("Selector.Include: Labels not in unique, sorted order")
    huge = pb.ListRequest(selector={"include": {"labels": [{"name": "aa"}] * 8193}})
    assert "invalid number of labels (8193" in refused(validate_shard_list_request, huge)


def listed(**changes):
    member = {"zone": "zone", "suffix": "suffix"}
    fields = {
        "spec": SPEC,
        "mod_revision": 1,
        "route": {"members": [member], "primary": 0},
        "status": [ReplicaStatus(ReplicaCode.PRIMARY).to_pb()],
    } | changes
    return pb.ListResponse(header=HEADER, shards=[fields])


def test_cv1_listing_has_a_status_for_each_member():
    validate_shard_list_response(listed())
    assert refused(validate_shard_list_response, listed(status=[])) == (
        "Shards[0]: length of Route.Members and Status are not equal (1 vs 0)"
    )
    bad = ReplicaStatus(ReplicaCode.FAILED).to_pb()
    assert refused(validate_shard_list_response, listed(status=[bad])) == (
        "Shards[0].Status[0]: expected Errors with Code FAILED"
    )
    assert refused(validate_shard_list_response, listed(mod_revision=0)) == (
        "Shards[0]: invalid ModRevision (0; expected > 0)"
    )
    route = Route(endpoints=("http://a:80",)).to_pb()
    assert refused(validate_shard_list_response, listed(route=route)).startswith(
        "Shards[0].Route: "
    )
    # What another process let pass must not hide all shards.
    validate_shard_list_response(listed(spec=BAD_SPEC))


@pytest.mark.parametrize(
    ("check", "response"),
    [
        (validate_shard_list_response, pb.ListResponse(status=9, header=HEADER)),
        (validate_shard_apply_response, pb.ApplyResponse(status=9, header=HEADER)),
        (validate_shard_stat_response, pb.StatResponse(status=9, header=HEADER)),
        (validate_shard_hints_response, pb.GetHintsResponse(status=9)),
        (validate_shard_unassign_response, pb.UnassignResponse(status=9)),
    ],
)
def test_cv1_unknown_status_is_refused(check, response):
    assert refused(check, response) == "Status: invalid value (9)"


@pytest.mark.parametrize(
    ("check", "response"),
    [
        (validate_shard_list_response, pb.ListResponse()),
        (validate_shard_apply_response, pb.ApplyResponse()),
        (validate_shard_stat_response, pb.StatResponse()),
    ],
)
def test_cv1_header_is_checked(check, response):
    assert refused(check, response).startswith("Header.")
    response.header.CopyFrom(HEADER)
    check(response)


def test_cv1_header_of_hints_is_not_checked():
    validate_shard_hints_response(pb.GetHintsResponse(status=1))


def test_cv1_offsets_of_progress_are_not_negative():
    for field in ("read_through", "publish_at"):
        response = pb.StatResponse(header=HEADER, **{field: {"a/one": 0}})
        validate_shard_stat_response(response)
        getattr(response, field)["a/two"] = -1
        name = {"read_through": "ReadThrough", "publish_at": "PublishAt"}[field]
        assert refused(validate_shard_stat_response, response) == (
            f"{name}[a/two]: invalid offset (-1; expected >= 0)"
        )


def test_cv1_unassign_names_valid_shards_and_has_to_succeed():
    validate_shard_unassign_request(pb.UnassignRequest(shards=["shard-000"]))
    assert refused(validate_shard_unassign_request, pb.UnassignRequest(shards=["good", "bad"])) == (
        "Shards[1]: invalid length (3; expected 4 <= length <= 512)"
    )
    validate_shard_unassign_response(pb.UnassignResponse(shards=["shard-000"]))
    assert refused(validate_shard_unassign_response, pb.UnassignResponse(status=4)) == (
        "invalid Status (ETCD_TRANSACTION_FAILED; expected OK)"
    )
    assert refused(
        validate_shard_unassign_response, pb.UnassignResponse(shards=["bad"])
    ).startswith("Shards[0]")


def test_jsonpb_of_shards_equals_gazettes_bytes():
    """Fields stand in the order of the protocol, and bytes that are absent are null."""
    assert orjson.dumps(message_jsonpb(listed())).decode() == (
        '{"status":"OK","header":{"process_id":{"zone":"zone","suffix":"suffix"},'
        '"route":{"members":[],"primary":-1,"endpoints":[]},'
        '"etcd":{"cluster_id":"1","member_id":"2","revision":"3","raft_term":"4"}},'
        '"shards":[{"spec":{"id":"shard-000","sources":[],"recovery_log_prefix":"",'
        '"hint_prefix":"","hint_backups":0,"max_txn_duration":"1.500s","min_txn_duration":"0s",'
        '"disable":false,"hot_standbys":0,"labels":{"labels":[]},"disable_wait_for_ack":false,'
        '"ring_buffer_size":0,"read_channel_size":0},"mod_revision":"1",'
        '"route":{"members":[{"zone":"zone","suffix":"suffix"}],"primary":0,"endpoints":[]},'
        '"status":[{"code":"PRIMARY","errors":[]}],"create_revision":"0"}],"extension":null}'
    )
