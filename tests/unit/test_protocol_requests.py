"""Every request and response validator, rule by rule (V8)."""

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    Fragment,
    FragmentSpec,
    Header,
    JournalSpec,
    ProcessId,
    Route,
    validate_append_chunk,
    validate_append_request,
    validate_append_response,
    validate_apply_request,
    validate_apply_response,
    validate_fragments_request,
    validate_fragments_response,
    validate_health_request,
    validate_health_response,
    validate_list_request,
    validate_list_response,
    validate_read_request,
    validate_read_response,
    validate_replicate_request,
    validate_replicate_response,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

_HEADER = Header(ProcessId("zone", "name"), Route(), EtcdHeader(1, 2, 3, 4)).to_pb()
_BAD_HEADER = pb.Header(route=pb.Route(primary=-1))
_BAD_ETCD = "Etcd: invalid ClusterId (expected != 0)"
_NAME = "a/journal"
_META = "a/journal;with/meta"
_FRAGMENT = Fragment(_NAME, 100, 200, codec=CompressionCodec.GZIP).to_pb()
_BAD_LABELS = pb.LabelSet(labels=[pb.Label(name="a")])
_BAD_LABEL = "Labels[0].Name: invalid length (1; expected 2 <= length <= 64)"
_SPEC = JournalSpec(
    _NAME, 1, fragment=FragmentSpec(1024, CompressionCodec.GZIP, refresh_interval_ns=10**9)
).to_pb()


def _expect(check, message, text, **kwargs):
    if text is None:
        check(message, **kwargs)
        return
    with pytest.raises(ValidationError) as raised:
        check(message, **kwargs)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"journal": _META, "header": _HEADER, "offset": -1}, None),
        ({"offset": 5, "end_offset": 5, "begin_mod_time": 3}, None),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"journal": "/bad"}, "Journal: cannot begin with '/' (/bad)"),
        ({"journal": ""}, "Journal: invalid length (0; expected 4 <= length <= 512)"),
        ({"offset": -2}, "invalid Offset (-2; expected >= -1)"),
        ({"offset": 5, "end_offset": 4}, "invalid EndOffset (4; expected 0 or >= 5)"),
        ({"offset": -1, "end_offset": -1}, "invalid EndOffset (-1; expected >= 0)"),
        ({"begin_mod_time": -1}, "invalid BeginModTime (-1; expected >= 0)"),
        ({"min_etcd_revision": -1}, "invalid MinEtcdRevision (-1; expected >= 0)"),
    ],
)
def test_v8_read_request(fields, text):
    _expect(validate_read_request, pb.ReadRequest(**{"journal": _NAME, **fields}), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"offset": 150, "fragment": _FRAGMENT, "write_head": 200, "header": _HEADER}, None),
        ({"offset": 100, "content": b"foobar"}, None),
        ({"status": "OFFSET_NOT_YET_AVAILABLE", "offset": 9, "write_head": 9}, None),
        (
            {
                "offset": 100,
                "fragment": _FRAGMENT,
                "write_head": 200,
                "fragment_url": "http://host/x",
            },
            None,
        ),
        ({"status": 1000}, "Status: invalid value (1000)"),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"offset": -1}, "invalid Offset (-1; expected >= 0)"),
        ({"write_head": -1}, "invalid WriteHead (-1; expected >= 0)"),
        (
            {"fragment": pb.Fragment(journal=_NAME, begin=100, end=200), "offset": 100},
            "Fragment.CompressionCodec: invalid value (INVALID)",
        ),
        (
            {"fragment": _FRAGMENT, "offset": 99, "write_head": 200},
            "invalid Offset (99; expected 100 <= offset < 200)",
        ),
        (
            {"fragment": _FRAGMENT, "offset": 200, "write_head": 200},
            "invalid Offset (200; expected 100 <= offset < 200)",
        ),
        (
            {"fragment": _FRAGMENT, "offset": 100, "write_head": 199},
            "invalid WriteHead (199; expected >= 200)",
        ),
        ({"fragment_url": "http://h/"}, "unexpected FragmentUrl without Fragment (http://h/)"),
        (
            {"fragment": _FRAGMENT, "offset": 100, "write_head": 200, "fragment_url": "rel"},
            "FragmentUrl: not absolute (rel)",
        ),
        (
            {"fragment": _FRAGMENT, "offset": 100, "write_head": 200, "fragment_url": "x://["},
            'FragmentUrl: parse "x://[": Invalid IPv6 URL',
        ),
        ({"content": b"x", "status": 1}, "unexpected Status with Content (JOURNAL_NOT_FOUND)"),
        ({"content": b"x", "header": _HEADER}, "unexpected Header with Content"),
        ({"content": b"x", "write_head": 2}, "unexpected WriteHead with Content (2)"),
        ({"content": b"x", "fragment": _FRAGMENT}, "unexpected Fragment with Content"),
        ({"content": b"x", "fragment_url": "u"}, "unexpected FragmentUrl with Content (u)"),
    ],
)
def test_v8_read_response(fields, text):
    _expect(validate_read_response, pb.ReadResponse(**fields), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        (
            {
                "journal": _META,
                "header": _HEADER,
                "offset": 7,
                "suspend": "SUSPEND_KEEP",
                "check_registers": pb.LabelSelector(),
                "union_registers": pb.LabelSet(),
                "subtract_registers": pb.LabelSet(),
            },
            None,
        ),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"journal": "/bad/name"}, "Journal: cannot begin with '/' (/bad/name)"),
        ({"content": b"x"}, "unexpected Content"),
        ({"offset": -1}, "invalid Offset (-1; expected >= 0)"),
        (
            {"check_registers": pb.LabelSelector(include=_BAD_LABELS)},
            f"CheckRegisters.Include.{_BAD_LABEL}",
        ),
        ({"union_registers": _BAD_LABELS}, f"UnionRegisters.{_BAD_LABEL}"),
        ({"subtract_registers": _BAD_LABELS}, f"SubtractRegisters.{_BAD_LABEL}"),
        ({"suspend": 9}, "Suspend: invalid value (9)"),
        ({"min_etcd_revision": -3}, "invalid MinEtcdRevision (-3; expected >= 0)"),
    ],
)
def test_v8_append_request(fields, text):
    _expect(validate_append_request, pb.AppendRequest(**{"journal": _NAME, **fields}), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"content": b"foobar"}, None),
        ({"journal": "/invalid"}, "Journal: cannot begin with '/' (/invalid)"),
        ({"journal": _NAME}, "expected Content chunk"),
        ({"header": _HEADER}, "unexpected Header"),
        ({"do_not_proxy": True}, "unexpected DoNotProxy"),
        ({"offset": 1}, "unexpected Offset"),
        ({"check_registers": pb.LabelSelector()}, "unexpected CheckRegisters"),
        ({"union_registers": pb.LabelSet()}, "unexpected UnionRegisters"),
        ({"subtract_registers": pb.LabelSet()}, "unexpected SubtractRegisters"),
        ({"suspend": 1}, "unexpected Suspend"),
        ({"min_etcd_revision": 1}, "unexpected MinEtcdRevision"),
    ],
)
def test_v8_append_chunk(fields, text):
    _expect(validate_append_chunk, pb.AppendRequest(**fields), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"commit": _FRAGMENT, "registers": pb.LabelSet()}, None),
        ({"status": "JOURNAL_NOT_FOUND"}, None),
        ({"status": "REGISTER_MISMATCH", "registers": pb.LabelSet()}, None),
        ({"status": "SUSPENDED", "commit": _FRAGMENT, "registers": pb.LabelSet()}, None),
        ({"status": 1000}, "Status: invalid value (1000)"),
        ({"status": 1, "header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({}, "expected Commit"),
        (
            {"commit": pb.Fragment(journal=_NAME)},
            "Commit.CompressionCodec: invalid value (INVALID)",
        ),
        ({"commit": _FRAGMENT}, "expected Registers"),
        ({"status": "REGISTER_MISMATCH"}, "expected Registers"),
        ({"commit": _FRAGMENT, "registers": _BAD_LABELS}, f"Registers.{_BAD_LABEL}"),
        ({"status": 1, "total_chunks": -1}, "invalid TotalChunks (-1; expected >= 0)"),
        (
            {"status": 1, "total_chunks": 1, "delayed_chunks": 2},
            "invalid DelayedChunks (2; expected 0 <= DelayedChunks <= 1)",
        ),
    ],
)
def test_v8_append_response(fields, text):
    _expect(validate_append_response, pb.AppendResponse(**{"header": _HEADER, **fields}), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": b"x", "content_delta": 100}, None),
        ({"proposal": _FRAGMENT, "registers": pb.LabelSet()}, None),
        ({"proposal": _FRAGMENT, "header": _HEADER, "acknowledge": True}, None),
        ({"proposal": _FRAGMENT, "deprecated_journal": _NAME}, None),
        (
            {"proposal": _FRAGMENT, "header": _BAD_HEADER, "acknowledge": True},
            f"Header.{_BAD_ETCD}",
        ),
        ({"proposal": _FRAGMENT, "header": _HEADER}, "expected Acknowledge with Header"),
        (
            {"proposal": pb.Fragment()},
            "Proposal.Journal: invalid length (0; expected 4 <= length <= 512)",
        ),
        (
            {"proposal": _FRAGMENT, "deprecated_journal": "other/name"},
            "DeprecatedJournal and Proposal.Journal mismatch (other/name vs a/journal)",
        ),
        ({"proposal": _FRAGMENT, "registers": _BAD_LABELS}, f"Registers.{_BAD_LABEL}"),
        ({"proposal": _FRAGMENT, "content": b"xy"}, "unexpected Content with Proposal (len 2)"),
        ({"proposal": _FRAGMENT, "content_delta": 1}, "unexpected ContentDelta with Proposal (1)"),
        ({}, "expected Content or Proposal"),
        ({"content": b"x", "header": _HEADER}, "unexpected Header without Proposal"),
        ({"content": b"x", "registers": pb.LabelSet()}, "unexpected Registers without Proposal"),
        ({"content": b"x", "acknowledge": True}, "unexpected Acknowledge without Proposal"),
        (
            {"content": b"x", "deprecated_journal": _NAME},
            "unexpected DeprecatedJournal without Proposal",
        ),
        ({"content": b"x", "content_delta": -1}, "invalid ContentDelta (-1; expected >= 0)"),
    ],
)
def test_v8_replicate_request(fields, text):
    _expect(validate_replicate_request, pb.ReplicateRequest(**fields), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"header": _HEADER}, None),
        ({"status": "WRONG_ROUTE", "header": _HEADER}, None),
        (
            {"status": "PROPOSAL_MISMATCH", "fragment": _FRAGMENT, "registers": pb.LabelSet()},
            None,
        ),
        ({"status": -1}, "Status: invalid value (-1)"),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"status": "WRONG_ROUTE"}, "expected Header"),
        ({"status": "PROPOSAL_MISMATCH"}, "expected Fragment"),
        ({"status": "PROPOSAL_MISMATCH", "fragment": _FRAGMENT}, "expected Registers"),
        (
            {"status": "PROPOSAL_MISMATCH", "fragment": _FRAGMENT, "registers": _BAD_LABELS},
            f"Registers.{_BAD_LABEL}",
        ),
        ({"fragment": _FRAGMENT}, "unexpected Fragment"),
        ({"registers": pb.LabelSet()}, "unexpected Registers"),
    ],
)
def test_v8_replicate_response(fields, text):
    _expect(validate_replicate_response, pb.ReplicateResponse(**fields), text)


def _selecting(name: str, value: str) -> pb.LabelSet:
    return pb.LabelSet(labels=[pb.Label(name=name, value=value)])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"selector": pb.LabelSelector(include=_selecting("prefix", "foo/"))}, None),
        ({"watch": True, "watch_resume": _HEADER}, None),
        (
            {"selector": pb.LabelSelector(include=_BAD_LABELS)},
            f"Selector.Include.{_BAD_LABEL}",
        ),
        (
            {"selector": pb.LabelSelector(include=_selecting("prefix", "foo"))},
            "Selector.Include.Labels[\"prefix\"]: expected trailing '/' (foo)",
        ),
        (
            {"selector": pb.LabelSelector(exclude=_selecting("prefix", "foo"))},
            "Selector.Exclude.Labels[\"prefix\"]: expected trailing '/' (foo)",
        ),
        ({"watch_resume": _BAD_HEADER}, f"WatchResume.{_BAD_ETCD}"),
    ],
)
def test_v8_list_request(fields, text):
    _expect(validate_list_request, pb.ListRequest(**fields), text)


def _listed(**fields: object) -> pb.ListResponse.Journal:
    default = {"spec": _SPEC, "mod_revision": 5, "route": pb.Route(primary=-1)}
    return pb.ListResponse.Journal(**{**default, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"journals": [_listed()]}, None),
        ({"status": 1000}, "Status: invalid value (1000)"),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"journals": [_listed(spec=pb.JournalSpec(name=_NAME))]}, None),
        (
            {"journals": [_listed(), _listed(mod_revision=0)]},
            "Journals[1]: invalid ModRevision (0; expected > 0)",
        ),
        (
            {"journals": [_listed(create_revision=-1)]},
            "Journals[0]: invalid CreateRevision (-1; expected >= 0)",
        ),
        (
            {"journals": [_listed(route=pb.Route())]},
            "Journals[0].Route: invalid Primary (0; expected -1 <= Primary < 0)",
        ),
    ],
)
def test_v8_list_response(fields, text):
    _expect(validate_list_response, pb.ListResponse(**{"header": _HEADER, **fields}), text)


def test_v8_list_response_that_continues():
    validate_list_response(pb.ListResponse(journals=[_listed()]), continuation=True)
    _expect(
        validate_list_response,
        pb.ListResponse(header=_HEADER),
        "unexpected Header in a continuation",
        continuation=True,
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"upsert": _SPEC}, None),
        ({"upsert": _SPEC, "expect_mod_revision": -1}, None),
        ({"delete": _NAME, "expect_mod_revision": 3}, None),
        ({"delete": _NAME, "expect_mod_revision": -1}, None),
        ({}, "Changes[1]: neither Upsert nor Delete are set (expected exactly one)"),
        (
            {"upsert": _SPEC, "delete": _NAME},
            "Changes[1]: both Upsert and Delete are set (expected exactly one)",
        ),
        (
            {"upsert": pb.JournalSpec(name="/bad")},
            "Changes[1].Upsert.Name: cannot begin with '/' (/bad)",
        ),
        (
            {"upsert": _SPEC, "expect_mod_revision": -2},
            "Changes[1]: invalid ExpectModRevision (-2; expected >= 0 or -1)",
        ),
        (
            {"delete": "bad name", "expect_mod_revision": 1},
            "Changes[1].Delete: not a valid token (bad name)",
        ),
        ({"delete": _NAME}, "Changes[1]: invalid ExpectModRevision (0; expected > 0 or -1)"),
        (
            {"delete": _NAME, "expect_mod_revision": -2},
            "Changes[1]: invalid ExpectModRevision (-2; expected > 0 or -1)",
        ),
    ],
)
def test_v8_apply_request(change, text):
    fine = pb.ApplyRequest.Change(upsert=_SPEC)
    request = pb.ApplyRequest(changes=[fine, pb.ApplyRequest.Change(**change)])
    _expect(validate_apply_request, request, text)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("../other", "must not have a '..' path segment (../other)"),
        (
            'at={{ .Spool.FirstAppendTime.Format "15:04 Mon" }}',
            "not a valid token (at=15:04 Mon)",
        ),
        ("{{ .JournalSpec.LabelSet.ValueOf `shard` }}/part", "cannot begin with '/' (/part)"),
        ('{{ .Spool.FirstAppendTime.Format "date=2006-01-02" }}', None),
        ("", None),
    ],
)
def test_apply_refuses_a_template_whose_postfix_could_not_be_persisted(template, problem):
    upsert = pb.JournalSpec.FromString(_SPEC.SerializeToString())
    upsert.fragment.path_postfix_template = template
    request = pb.ApplyRequest(changes=[pb.ApplyRequest.Change(upsert=upsert)])
    where = "Changes[0].Upsert.Fragment.PathPostfixTemplate.PathPostfix"
    _expect(validate_apply_request, request, problem and f"{where}: {problem}")


@pytest.mark.parametrize(
    ("check", "message_type"),
    [
        (validate_apply_response, pb.ApplyResponse),
        (validate_fragments_response, pb.FragmentsResponse),
        (validate_health_response, pb.FragmentStoreHealthResponse),
    ],
)
def test_v8_status_and_header_of_plain_responses(check, message_type):
    check(message_type(header=_HEADER))
    _expect(check, message_type(status=1000, header=_HEADER), "Status: invalid value (1000)")
    _expect(check, message_type(header=_BAD_HEADER), f"Header.{_BAD_ETCD}")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"journal": _META, "page_limit": 10_000, "end_mod_time": 5, "header": _HEADER}, None),
        ({"begin_mod_time": 50, "end_mod_time": 50}, None),
        ({"signatureTTL": {"nanos": 1}}, None),
        ({"header": _BAD_HEADER}, f"Header.{_BAD_ETCD}"),
        ({"journal": "/bad"}, "Journal: cannot begin with '/' (/bad)"),
        ({"begin_mod_time": -1}, "invalid BeginModTime (-1; expected >= 0)"),
        (
            {"begin_mod_time": 50, "end_mod_time": 40},
            "invalid EndModTime (40 must be after 50)",
        ),
        ({"next_page_token": -1}, "invalid NextPageToken (-1; expected >= 0)"),
        ({"page_limit": -1}, "invalid PageLimit (-1; expected 0 <= PageLimit <= 10000)"),
        ({"page_limit": 10_001}, "invalid PageLimit (10001; expected 0 <= PageLimit <= 10000)"),
        ({"signatureTTL": {}}, "invalid SignatureTTL (0s; expected > 0s)"),
        ({"signatureTTL": {"seconds": -1}}, "invalid SignatureTTL (-1s; expected > 0s)"),
    ],
)
def test_v8_fragments_request(fields, text):
    _expect(validate_fragments_request, pb.FragmentsRequest(**{"journal": _NAME, **fields}), text)


@pytest.mark.parametrize(
    ("listed", "token", "text"),
    [
        ({"spec": _FRAGMENT, "signed_url": "file:///x"}, 0, None),
        (
            {"spec": pb.Fragment()},
            0,
            "Fragments[0].Spec.Journal: invalid length (0; expected 4 <= length <= 512)",
        ),
        ({"spec": _FRAGMENT, "signed_url": "x"}, 0, "Fragments[0].SignedUrl: not absolute (x)"),
        ({"spec": _FRAGMENT}, -1, "invalid NextPageToken (-1; expected >= 0)"),
    ],
)
def test_v8_fragments_response(listed, token, text):
    response = pb.FragmentsResponse(header=_HEADER, next_page_token=token)
    response.fragments.add(**listed)
    _expect(validate_fragments_response, response, text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, None),
        ({"check_delete": True}, None),
        ({"check_delete": True, "check_delete_prefix": "a/b/"}, None),
        ({"fragment_store": "s3:///"}, "FragmentStore: missing bucket (s3:///)"),
        ({"check_delete_prefix": "a/"}, "unexpected CheckDeletePrefix without CheckDelete"),
        (
            {"check_delete": True, "check_delete_prefix": "a"},
            "CheckDeletePrefix: expected trailing '/' (a)",
        ),
        (
            {"check_delete": True, "check_delete_prefix": "/"},
            "CheckDeletePrefix: invalid length (0; expected 1 <= length <= 512)",
        ),
        (
            {"check_delete": True, "check_delete_prefix": "a//"},
            "CheckDeletePrefix: must be a clean path (a/)",
        ),
        (
            {"check_delete": True, "check_delete_prefix": "/a/"},
            "CheckDeletePrefix: cannot begin with '/' (/a)",
        ),
        (
            {"check_delete": True, "check_delete_prefix": "../"},
            "CheckDeletePrefix: must not have a '..' path segment (..)",
        ),
    ],
)
def test_v8_health_request(fields, text):
    default = {"fragment_store": "file:///"}
    _expect(validate_health_request, pb.FragmentStoreHealthRequest(**{**default, **fields}), text)


def test_v8_health_response_has_an_error_only_if_unhealthy():
    unhealthy = pb.FragmentStoreHealthResponse(
        header=_HEADER, status="FRAGMENT_STORE_UNHEALTHY", store_health_error="gone"
    )
    validate_health_response(unhealthy)
    healthy = pb.FragmentStoreHealthResponse(header=_HEADER, store_health_error="gone")
    _expect(validate_health_response, healthy, "unexpected StoreHealthError with OK (gone)")
