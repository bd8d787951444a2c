"""JSON and text of listings, beyond the golden vectors."""

import json

from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    Fragment,
    FragmentSpec,
    Header,
    JournalSpec,
    ProcessId,
    Route,
    fragment_json,
    message_jsonpb,
    route_text,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

_ROUTE = Route((ProcessId("a", "broker"),), 0, ("http://b/",))


def test_listing_has_defaults_and_text_for_large_integers():
    spec = JournalSpec(
        "a/journal",
        1,
        fragment=FragmentSpec(
            1024, CompressionCodec.NONE, refresh_interval_ns=1_500_000_000, retention_ns=-1
        ),
    )
    header = Header(None, Route(), EtcdHeader(2**64 - 1, 2, 3, 4))
    response = pb.ListResponse(header=header.to_pb())
    listed = response.journals.add(mod_revision=7, create_revision=5, spec=spec.to_pb())
    listed.route.CopyFrom(_ROUTE.to_pb())
    listing = message_jsonpb(response)
    assert json.loads(json.dumps(listing)) == listing
    assert listing["status"] == "OK"
    assert listing["header"] == {
        "process_id": {"zone": "", "suffix": ""},
        "route": {"members": [], "primary": -1, "endpoints": []},
        "etcd": {
            "cluster_id": "18446744073709551615",
            "member_id": "2",
            "revision": "3",
            "raft_term": "4",
        },
    }
    (journal,) = listing["journals"]
    assert journal["mod_revision"] == "7"
    assert journal["create_revision"] == "5"
    assert journal["route"]["members"] == [{"zone": "a", "suffix": "broker"}]
    assert journal["spec"]["suspend"] is None
    assert journal["spec"]["fragment"]["refresh_interval"] == "1.500s"
    assert journal["spec"]["fragment"]["retention"] == "-0.000000001s"


def test_durations_have_three_six_or_nine_digits():
    def shown(nanoseconds: int) -> str:
        spec = JournalSpec("", fragment=FragmentSpec(retention_ns=nanoseconds))
        return message_jsonpb(spec.to_pb())["fragment"]["retention"]

    assert shown(1_000_001_000) == "1.000001s"
    assert shown(1_100_000_001) == "1.100000001s"
    assert shown(-60 * 10**9) == "-60s"


def test_fragments_leave_zero_fields_out():
    stored = Fragment("a/journal", 5, 6, bytes(20), CompressionCodec.NONE, "s3://b/", 9, "x=y")
    assert fragment_json(stored, "http://signed") == {
        "spec": {
            "journal": "a/journal",
            "begin": 5,
            "end": 6,
            "sum": {},
            "compression_codec": 1,
            "backing_store": "s3://b/",
            "mod_time": 9,
            "path_postfix": "x=y",
        },
        "signed_url": "http://signed",
    }


def test_route_text_escapes_and_leaves_the_first_primary_out():
    assert route_text(_ROUTE) == 'members:<zone:"a" suffix:"broker" > endpoints:"http://b/" '
    odd = Route((ProcessId('q"\\', "日\n"),), -1)
    assert route_text(odd) == ('members:<zone:"q\\"\\\\" suffix:"\\346\\227\\245\\n" > primary:-1 ')
