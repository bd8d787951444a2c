"""Journal and broker specs, routes, headers, store and endpoint URLs (V5, V7, V9)."""

from dataclasses import replace

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    EtcdHeader,
    FragmentSpec,
    Header,
    JournalFlag,
    JournalSpec,
    Label,
    LabelSet,
    ProcessId,
    Route,
    SuspendLevel,
    SuspendSpec,
    endpoint_grpc_address,
    parse_store_url,
    validate_endpoint,
)

_FRAGMENT = FragmentSpec(
    length=1 << 18,
    codec=CompressionCodec.SNAPPY,
    stores=("s3://bucket/path/", "gs://other-bucket/path/"),
    refresh_interval_ns=5 * 60 * 10**9,
    retention_ns=365 * 24 * 3600 * 10**9,
    flush_interval_ns=60 * 10**9,
)
_SPEC = JournalSpec("a/journal", 3, LabelSet.of(aa="v1", bb="v2"), _FRAGMENT, JournalFlag.O_RDWR)


def _with_fragment(**fields: object) -> JournalSpec:
    return replace(_SPEC, fragment=replace(_FRAGMENT, **fields))


def test_spec_is_fine_and_survives_its_message():
    _SPEC.validate()
    assert JournalSpec.from_pb(_SPEC.to_pb()) == _SPEC
    suspended = replace(_SPEC, suspend=SuspendSpec())
    assert JournalSpec.from_pb(suspended.to_pb()) == suspended
    assert FragmentSpec.from_pb(_FRAGMENT.to_pb()) == _FRAGMENT


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (replace(_SPEC, name="/bad/name"), "Name: cannot begin with '/' (/bad/name)"),
        (replace(_SPEC, name="a/journal;meta"), "Name: not a valid token (a/journal;meta)"),
        (replace(_SPEC, replication=0), "invalid Replication (0; expected 1 <= Replication <= 5)"),
        (replace(_SPEC, replication=6), "invalid Replication (6; expected 1 <= Replication <= 5)"),
        (
            replace(_SPEC, labels=LabelSet((Label("b"),))),
            "Labels.Labels[0].Name: invalid length (1; expected 2 <= length <= 64)",
        ),
        (
            replace(_SPEC, labels=LabelSet.of(name="x")),
            'Labels: cannot include label "name"',
        ),
        (
            replace(_SPEC, labels=LabelSet.of(prefix="")),
            'Labels: cannot include label "prefix"',
        ),
        (
            replace(
                _SPEC,
                labels=LabelSet.of(
                    ("app.gazette.dev/region", "a"), ("app.gazette.dev/region", "b")
                ),
            ),
            (
                "Labels: expected single-value Label has multiple values "
                "(index 1; label app.gazette.dev/region value b)"
            ),
        ),
        (
            replace(_SPEC, labels=LabelSet.of({"content-type": "bad"})),
            "Labels: parsing content-type: not a media type (bad)",
        ),
        (
            replace(_SPEC, labels=LabelSet.of({"app.gazette.dev/message-type": "T"})),
            "Labels: expected label content-type alongside app.gazette.dev/message-type",
        ),
        (
            replace(_SPEC, labels=LabelSet.of({"app.gazette.dev/message-subtype": "T"})),
            (
                "Labels: expected label app.gazette.dev/message-type "
                "alongside app.gazette.dev/message-subtype"
            ),
        ),
        (
            _with_fragment(length=1023),
            "Fragment: invalid Length (1023; expected 1024 <= length <= 17179869184)",
        ),
        (
            _with_fragment(length=(1 << 34) + 1),
            "Fragment: invalid Length (17179869185; expected 1024 <= length <= 17179869184)",
        ),
        (
            _with_fragment(codec=CompressionCodec.INVALID),
            "Fragment.CompressionCodec: invalid value (INVALID)",
        ),
        (
            _with_fragment(codec=CompressionCodec.from_wire(9999)),
            "Fragment.CompressionCodec: invalid value (9999)",
        ),
        (
            _with_fragment(stores=("s3://bucket/a/", "ftp://foo/")),
            "Fragment.Stores[1]: invalid scheme (ftp)",
        ),
        (
            _with_fragment(
                stores=("file:///a/",), codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
            ),
            (
                "Fragment.Stores[0]: GZIP_OFFLOAD_DECOMPRESSION is incompatible with file:// stores "
                "(file:///a/; use GZIP)"
            ),
        ),
        (
            _with_fragment(refresh_interval_ns=10**9 - 1),
            "Fragment: invalid RefreshInterval (999.999999ms; expected 1s <= interval <= 24h0m0s)",
        ),
        (
            _with_fragment(refresh_interval_ns=86401 * 10**9),
            "Fragment: invalid RefreshInterval (24h0m1s; expected 1s <= interval <= 24h0m0s)",
        ),
        (
            _with_fragment(flush_interval_ns=59 * 10**9),
            "Fragment: invalid FlushInterval (59s; expected 0 or >= 1m0s)",
        ),
        (
            _with_fragment(flush_interval_ns=-1),
            "Fragment: invalid FlushInterval (-1ns; expected 0 or >= 1m0s)",
        ),
        (
            _with_fragment(path_postfix_template="{{ .Bad }}"),
            (
                "Fragment.PathPostfixTemplate: template: line 1: "
                "can't evaluate field Bad in type path postfix data"
            ),
        ),
        (replace(_SPEC, flags=JournalFlag.from_wire(35)), "Flags: invalid Flags combination (35)"),
        (replace(_SPEC, flags=JournalFlag.from_wire(3)), "Flags: invalid Flags combination (3)"),
        (replace(_SPEC, max_append_rate=-1), "invalid MaxAppendRate (-1; expected >= 0)"),
        (
            replace(_SPEC, suspend=SuspendSpec(SuspendLevel.FULL, -1)),
            "Suspend: invalid Offset (-1; expected >= 0)",
        ),
        (
            replace(_SPEC, suspend=SuspendSpec(SuspendLevel.from_wire(9), 1)),
            "Suspend.Level: invalid value (9)",
        ),
    ],
)
def test_v5_spec_that_breaks_a_rule(spec, text):
    with pytest.raises(ValidationError) as raised:
        spec.validate()
    assert str(raised.value) == text


@pytest.mark.parametrize(
    "spec",
    [
        replace(_SPEC, flags=JournalFlag.NOT_SPECIFIED),
        _with_fragment(stores=()),
        _with_fragment(retention_ns=-1),
        _with_fragment(flush_interval_ns=0),
        _with_fragment(
            stores=("s3://a/", "file:///b/"), codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        ),
        replace(
            _SPEC,
            labels=LabelSet.of(
                {
                    "content-type": "application/x-ndjson",
                    "app.gazette.dev/message-type": "T",
                    "app.gazette.dev/message-subtype": "U",
                },
                ("app.gazette.dev/tag", "a"),
                ("app.gazette.dev/tag", "b"),
            ),
        ),
    ],
)
def test_v5_spec_that_is_fine(spec):
    spec.validate()


def test_v5_desired_replication_follows_suspension_and_cap():
    assert _SPEC.desired_replication() == 3
    assert _SPEC.desired_replication(2) == 2
    for level, expected in (
        (SuspendLevel.NONE, 3),
        (SuspendLevel.PARTIAL, 1),
        (SuspendLevel.FULL, 0),
    ):
        assert replace(_SPEC, suspend=SuspendSpec(level)).desired_replication() == expected


def test_v5_flags_say_what_may_be_done():
    table = {
        JournalFlag.NOT_SPECIFIED: (True, True),
        JournalFlag.O_RDONLY: (True, False),
        JournalFlag.O_WRONLY: (False, True),
        JournalFlag.O_RDWR: (True, True),
        JournalFlag.from_wire(35): (False, False),
    }
    for flag, expected in table.items():
        assert (flag.may_read, flag.may_write) == expected


def test_labels_with_the_implicit_name():
    assert _SPEC.label_set_with_name() == LabelSet.of(aa="v1", bb="v2", name="a/journal")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/a/dir/", "not absolute (/a/dir/)"),
        ("s3://bucket/no-slash", "path component doesn't end in '/' (s3://bucket/no-slash)"),
        ("s3://bucket", "path component doesn't end in '/' (s3://bucket)"),
        ("s3:///path/", "missing bucket (s3:///path/)"),
        ("gs:///path/", "missing bucket (gs:///path/)"),
        ("azure-ad:///a/b/", "missing tenant (azure-ad:///a/b/)"),
        ("azure-ad://tenant/account/", "missing account or container (azure-ad://tenant/account/)"),
        ("file://host/path/", "file scheme cannot have host (file://host/path/)"),
        ("file:///a/../../b/", "path must not have a '..' segment (file:///a/../../b/)"),
        ("file:///a/%2e%2e/", "path must not have a '..' segment (file:///a/%2e%2e/)"),
        ("nope://bucket/path/", "invalid scheme (nope)"),
        ("s3://b/p/?a=1&a=2", "query argument a is given twice (s3://b/p/?a=1&a=2)"),
    ],
)
def test_v7_store_urls_that_break_a_rule(url, text):
    with pytest.raises(ValidationError) as raised:
        parse_store_url(url)
    assert str(raised.value) == text


@pytest.mark.parametrize("url", ["s3://[bad/", "s3://b/p/?=&&", "s3://b/a b/", "s3://b/\n/"])
def test_v7_store_urls_that_are_none(url):
    with pytest.raises(ValidationError):
        parse_store_url(url)


def test_v7_store_url_in_parts():
    url = parse_store_url("s3://bucket/a/b%20c/?Profile=x&endpoint=http%3A%2F%2Fh&find=")
    assert (url.scheme, url.host, url.path, url.prefix) == ("s3", "bucket", "/a/b c/", "a/b c/")
    assert url.args == {"Profile": "x", "endpoint": "http://h", "find": ""}
    assert url.text.startswith("s3://bucket/")
    assert parse_store_url("file:///").path == "/"
    assert parse_store_url("azure-ad://tenant/account/container/").host == "tenant"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://host:1234", ("host:1234", False)),
        ("http://host/path", ("host:80", False)),
        ("https://host", ("host:443", True)),
        ("https://[::1]", ("[::1]:443", True)),
        ("unix://localhost/run/x.sock", ("unix:///run/x.sock", False)),
        ("foo://host", ("host", False)),
    ],
)
def test_v7_endpoint_addresses(endpoint, expected):
    assert endpoint_grpc_address(endpoint) == expected


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("", "not absolute ()"),
        ("host:80", "missing host (host:80)"),
        ("/path", "not absolute (/path)"),
        ("http:///path", "missing host (http:///path)"),
        ("unix:///path", "missing host (unix:///path)"),
        ("http://[bad", 'parse "http://[bad": Invalid IPv6 URL'),
    ],
)
def test_v7_endpoints_that_break_a_rule(endpoint, text):
    with pytest.raises(ValidationError) as raised:
        validate_endpoint(endpoint)
    assert str(raised.value) == text


_BROKER = BrokerSpec(ProcessId("zone", "name"), "http://foo", 5)


@pytest.mark.parametrize(
    ("broker", "text"),
    [
        (
            replace(_BROKER, id=ProcessId("", "name")),
            "ProcessSpec.Id.Zone: invalid length (0; expected 1 <= length <= 32)",
        ),
        (
            replace(_BROKER, id=ProcessId("zone", "abc")),
            "ProcessSpec.Id.Suffix: invalid length (3; expected 4 <= length <= 128)",
        ),
        (
            replace(_BROKER, id=ProcessId("z#ne", "name")),
            "ProcessSpec.Id.Zone: not a valid token (z#ne)",
        ),
        (replace(_BROKER, endpoint="foo"), "ProcessSpec.Endpoint: not absolute (foo)"),
        (
            replace(_BROKER, journal_limit=(1 << 17) + 1),
            "invalid JournalLimit (131073; expected <= 131072)",
        ),
    ],
)
def test_v9_broker_that_breaks_a_rule(broker, text):
    with pytest.raises(ValidationError) as raised:
        broker.validate()
    assert str(raised.value) == text


def test_v9_broker_that_is_fine():
    _BROKER.validate()
    assert BrokerSpec.from_pb(_BROKER.to_pb()) == _BROKER
    assert ProcessId.from_pb(_BROKER.id.to_pb()) == _BROKER.id
    assert str(_BROKER.id) == 'zone:"zone" suffix:"name" '


_A, _B = ProcessId("zone-a", "member-1"), ProcessId("zone-b", "member-2")
_ROUTE = Route((_A, _B), 1, ("http://a", "http://b"))
_ETCD = EtcdHeader(12, 34, 56, 78)


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (
            replace(_ROUTE, members=(_A, ProcessId("zone b", "member-2"))),
            "Members[1].Zone: not a valid token (zone b)",
        ),
        (
            replace(_ROUTE, members=(_B, _A)),
            (
                'Members not in unique, sorted order (index 1; {zone:"zone-a" suffix:"member-1" } <= '
                '{zone:"zone-b" suffix:"member-2" })'
            ),
        ),
        (replace(_ROUTE, members=(_A, _A)), "Members not in unique, sorted order"),
        (replace(_ROUTE, primary=-2), "invalid Primary (-2; expected -1 <= Primary < 2)"),
        (replace(_ROUTE, primary=2), "invalid Primary (2; expected -1 <= Primary < 2)"),
        (Route(primary=0), "invalid Primary (0; expected -1 <= Primary < 0)"),
        (
            replace(_ROUTE, endpoints=("http://a",)),
            "len(Endpoints) != 0, and != len(Members) (1 vs 2)",
        ),
        (replace(_ROUTE, endpoints=("", "b")), "Endpoints[1]: not absolute (b)"),
    ],
)
def test_v9_route_that_breaks_a_rule(route, text):
    with pytest.raises(ValidationError) as raised:
        route.validate()
    assert str(raised.value).startswith(text)


def test_v9_route_that_is_fine():
    for route in (_ROUTE, Route(), replace(_ROUTE, endpoints=("", "http://b")), Route((_A,), -1)):
        route.validate()
        assert Route.from_pb(route.to_pb()) == route


def test_v9_equivalence_of_routes_ignores_endpoints():
    assert _ROUTE.equivalent(_ROUTE.without_endpoints())
    assert not _ROUTE.equivalent(replace(_ROUTE, primary=0))
    assert not _ROUTE.equivalent(Route((_A,), -1))


def test_route_lookups():
    assert _ROUTE.primary_id == _B
    assert Route().primary_id is None
    assert _ROUTE.endpoint_of(_B) == "http://b"
    assert _ROUTE.endpoint_of(ProcessId("zone-c", "nobody")) == ""
    assert _ROUTE.without_endpoints().endpoint_of(_B) == ""


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            Header(ProcessId("", "member-1"), _ROUTE, _ETCD),
            "ProcessId.Zone: invalid length (0; expected 1 <= length <= 32)",
        ),
        (
            Header(_A, replace(_ROUTE, primary=2), _ETCD),
            "Route: invalid Primary (2; expected -1 <= Primary < 2)",
        ),
        (
            Header(_A, _ROUTE, replace(_ETCD, cluster_id=0)),
            "Etcd: invalid ClusterId (expected != 0)",
        ),
        (Header(_A, _ROUTE, replace(_ETCD, member_id=0)), "Etcd: invalid MemberId (expected != 0)"),
        (
            Header(_A, _ROUTE, replace(_ETCD, revision=0)),
            "Etcd: invalid Revision (0; expected > 0)",
        ),
        (Header(_A, _ROUTE, replace(_ETCD, raft_term=0)), "Etcd: invalid RaftTerm (expected != 0)"),
    ],
)
def test_v9_header_that_breaks_a_rule(header, text):
    with pytest.raises(ValidationError) as raised:
        header.validate()
    assert str(raised.value) == text


def test_v9_header_that_is_fine():
    for header in (Header(_A, _ROUTE, _ETCD), Header(None, Route(), _ETCD)):
        header.validate()
        assert Header.from_pb(header.to_pb()) == header
    assert EtcdHeader.from_pb(_ETCD.to_pb()) == _ETCD
