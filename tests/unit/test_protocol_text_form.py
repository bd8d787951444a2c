"""Prototext: fields by number, messages in angle brackets, what is zero left out."""

import pytest
from google.protobuf import text_format

from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    Fragment,
    FragmentSpec,
    Header,
    JournalFlag,
    JournalSpec,
    LabelSet,
    ProcessId,
    Route,
    SuspendLevel,
    SuspendSpec,
    fragments_text,
    message_text,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

MEMBER = ProcessId("a", "broker")
SPEC = JournalSpec(
    "a/journal",
    2,
    labels=LabelSet.of(aa="11", bb=""),
    fragment=FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///", 's3://b/p/?a="x"'),
        refresh_interval_ns=300 * 10**9,
        flush_interval_ns=1_500_000_000,
        path_postfix_template="日\tx\x01\\'",
    ),
    flags=JournalFlag.O_RDWR,
    max_append_rate=99,
    suspend=SuspendSpec(SuspendLevel.PARTIAL, 7),
)

LISTING_TEXT = r"""header: <
  process_id: <
    zone: "a"
    suffix: "broker"
  >
  route: <
    primary: -1
  >
  etcd: <
    cluster_id: 12
    member_id: 34
    revision: 56
    raft_term: 78
  >
>
journals: <
  spec: <
    name: "a/journal"
    replication: 2
    labels: <
      labels: <
        name: "aa"
        value: "11"
      >
      labels: <
        name: "bb"
      >
    >
    fragment: <
      length: 1048576
      compression_codec: GZIP
      stores: "file:///"
      stores: "s3://b/p/?a=\"x\""
      refresh_interval: <
        seconds: 300
      >
      flush_interval: <
        seconds: 1
        nanos: 500000000
      >
      path_postfix_template: "\346\227\245\tx\001\\'"
    >
    flags: 4
    max_append_rate: 99
    suspend: <
      level: PARTIAL
      offset: 7
    >
  >
  mod_revision: 9
  route: <
    members: <
      zone: "a"
      suffix: "broker"
    >
    members: <
      zone: "b"
      suffix: "other"
    >
    endpoints: "http://a:1"
    endpoints: ""
  >
  create_revision: 8
>
"""


def listing():
    response = pb.ListResponse(header=Header(MEMBER, Route(), EtcdHeader(12, 34, 56, 78)).to_pb())
    response.journals.add(
        spec=SPEC.to_pb(),
        mod_revision=9,
        create_revision=8,
        route=Route((MEMBER, ProcessId("b", "other")), 0, ("http://a:1", "")).to_pb(),
    )
    return response


def test_a_listing():
    assert message_text(listing()) == LISTING_TEXT


def test_other_parsers_read_it():
    parsed = text_format.Parse(message_text(listing()), pb.ListResponse())
    assert parsed.header == listing().header
    assert parsed.journals[0].route == listing().journals[0].route
    assert JournalSpec.from_pb(parsed.journals[0].spec) == SPEC


def test_empty_messages_are_written_if_present_and_durations_if_not_zero():
    request = pb.ApplyRequest()
    request.changes.add(upsert=JournalSpec("c/d", 0, suspend=SuspendSpec()).to_pb())
    request.changes.add(delete="x/y", expect_mod_revision=-1)
    assert message_text(request, indent=" ") == (
        " changes: <\n"
        "   upsert: <\n"
        '     name: "c/d"\n'
        "     labels: <\n     >\n"
        "     fragment: <\n     >\n"
        "     suspend: <\n     >\n"
        "   >\n"
        " >\n"
        ' changes: <\n   expect_mod_revision: -1\n   delete: "x/y"\n >\n'
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.AppendResponse(status=pb.REGISTER_MISMATCH), "status: REGISTER_MISMATCH\n"),
        (pb.ListRequest(watch=True), "watch: true\n"),
        (pb.AppendRequest(content=b"\xff\n"), 'content: "\\377\\n"\n'),
        (pb.JournalSpec(flags=35), "flags: 35\n"),
        (pb.ListResponse.FromString(b"\x08\x63"), "status: 99\n"),
        (pb.ListResponse(), ""),
    ],
    ids=["enum", "bool", "bytes", "number", "unknown", "nothing"],
)
def test_values(message, text):
    assert message_text(message) == text


def test_a_list_of_fragments():
    sha1 = bytes.fromhex("8843d7f92416211de9ebb963ff4ce28125932878")
    fragment = Fragment("a/journal", 0, 6, sha1, CompressionCodec.SNAPPY)
    first = (
        'fragments: <\n  spec: <\n    journal: "a/journal"\n    end: 6\n'
        "    sum: <\n      part1: 9818929077650071837\n      part2: 16855769869500342913\n"
        "      part3: 630401144\n    >\n    compression_codec: SNAPPY\n  >\n>\n"
    )
    assert fragments_text([(fragment, "")]) == first
    empty = Fragment("a/journal", 6, 6, mod_time=3, path_postfix="a=b")
    second = (
        'fragments: <\n  spec: <\n    journal: "a/journal"\n    begin: 6\n    end: 6\n'
        "    sum: <\n    >\n    compression_codec: NONE\n    mod_time: 3\n"
        '    path_postfix: "a=b"\n  >\n  signed_url: "file:///x?a&b=\'c\'"\n>\n'
    )
    assert fragments_text([(empty, "file:///x?a&b='c'")]) == second
    header = Header(MEMBER, Route((MEMBER,), 0, ("http://b/",)), EtcdHeader(12, 34, 56, 78))
    head = (
        'header: <\n  process_id: <\n    zone: "a"\n    suffix: "broker"\n  >\n'
        '  route: <\n    members: <\n      zone: "a"\n      suffix: "broker"\n    >\n'
        '    endpoints: "http://b/"\n  >\n'
        "  etcd: <\n    cluster_id: 12\n    member_id: 34\n    revision: 56\n    raft_term: 78\n"
        "  >\n>\n"
    )
    assert fragments_text([], header=header) == head
    both = [(fragment, ""), (empty, "file:///x?a&b='c'")]
    assert fragments_text(both, header=header) == head + first + second
    parsed = text_format.Parse(head + first + second, pb.FragmentsResponse())
    assert [Fragment.from_pb(each.spec) for each in parsed.fragments] == [fragment, empty]
