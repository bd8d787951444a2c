"""JSON of the REST gateway, byte for byte."""

from __future__ import annotations

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import (
    INVALID_ARGUMENT,
    call_error_line,
    error_line,
    error_of,
    parse_request,
    result_line,
)
from gazette_platform.serving.interface import Code, Denied, RpcFailed

ZERO_HEADER = (
    b'{"processId":{"zone":"","suffix":""},"route":{"members":[],"primary":0,"endpoints":[]},'
    b'"etcd":{"clusterId":"0","memberId":"0","revision":"0","raftTerm":"0"}}'
)


def test_a_listing_has_each_field_in_order_defaults_included():
    response = pb.ListResponse()
    journal = response.journals.add(mod_revision=7, create_revision=5)
    journal.spec.name = "a/one"
    journal.spec.replication = 1
    journal.spec.labels.labels.add(name="env", value="test")
    journal.spec.fragment.length = 1 << 40
    journal.spec.fragment.compression_codec = pb.GZIP
    journal.spec.fragment.stores.append("file:///")
    journal.spec.fragment.refresh_interval.FromNanoseconds(10_500_000_000)
    journal.route.members.add(zone="local", suffix="broker-0")
    journal.route.endpoints.append("http://b/")
    assert result_line(response) == (
        b'{"result":{"status":"OK","header":'
        + ZERO_HEADER
        + b',"journals":[{"spec":{"name":"a/one",'
        b'"replication":1,"labels":{"labels":[{"name":"env","value":"test","prefix":false}]},'
        b'"fragment":{"length":"1099511627776","compressionCodec":"GZIP","stores":["file:///"],'
        b'"refreshInterval":"10.500s","retention":"0s","flushInterval":"0s",'
        b'"pathPostfixTemplate":""},"flags":0,"maxAppendRate":"0","suspend":null},'
        b'"modRevision":"7","route":{"members":[{"zone":"local","suffix":"broker-0"}],"primary":0,'
        b'"endpoints":["http://b/"]},"createRevision":"5"}]}}\n'
    )


def test_signs_of_html_are_escaped_as_go_does():
    response = pb.ReadResponse(fragment_url="http://s/<a>?b&c\u2028")
    assert b'"fragmentUrl":"http://s/\\u003ca\\u003e?b\\u0026c\\u2028"' in result_line(response)
    assert b'"message":"a \\u003c b"' in error_line("a < b", INVALID_ARGUMENT)


def test_suspension_is_printed_if_a_spec_has_it():
    response = pb.ListResponse()
    response.journals.add().spec.suspend.offset = 9
    assert b'"suspend":{"level":"NONE","offset":"9"}' in result_line(response)


def test_content_is_base64_and_absent_messages_are_null():
    assert result_line(pb.ReadResponse(offset=3, content=b"abc\xff")) == (
        b'{"result":{"status":"OK","header":null,"offset":"3","writeHead":"0","fragment":null,'
        b'"fragmentUrl":"","content":"YWJj/w=="}}\n'
    )
    response = pb.ReadResponse(status=pb.OFFSET_NOT_YET_AVAILABLE, write_head=6)
    response.fragment.journal = "a/one"
    response.fragment.sum.part1 = (1 << 64) - 1
    response.fragment.sum.part3 = 8
    assert result_line(response) == (
        b'{"result":{"status":"OFFSET_NOT_YET_AVAILABLE","header":null,"offset":"0","writeHead":"6",'
        b'"fragment":{"journal":"a/one","begin":"0","end":"0",'
        b'"sum":{"part1":"18446744073709551615","part2":"0","part3":8},"compressionCodec":"INVALID",'
        b'"backingStore":"","modTime":"0","pathPostfix":""},"fragmentUrl":"","content":null}}\n'
    )


def test_requests_may_name_fields_in_either_way_and_give_numbers_as_text():
    expected = pb.ReadRequest(journal="a/one", offset=-1, metadata_only=True)
    for body in (
        b'{"journal":"a/one","offset":"-1","metadataOnly":true}',
        b'{"journal":"a/one","offset":-1,"metadata_only":true}',
    ):
        assert parse_request(pb.ReadRequest, body) == expected
    assert parse_request(pb.ListRequest, b" \n") == pb.ListRequest()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"start":1}',
        b'{"offset":"x"}',
        b'{"offset":1.5}',
        b'{"offset":99999999999999999999}',
        b'{"offset":' + b"9" * 6000 + b"}",
        b'{"header":' * 5000,
        b'{"journal":1}',
    ],
)
def test_bodies_that_are_not_requests_are_refused(body):
    with pytest.raises(ValidationError, match="the body is no ReadRequest"):
        parse_request(pb.ReadRequest, body)


def test_errors_have_the_codes_of_grpc_and_of_http():
    assert error_line("no token", error_of(RpcFailed(Code.UNAUTHENTICATED, ""))) == (
        b'{"error":{"grpcCode":16,"httpCode":401,"message":"no token","httpStatus":"Unauthorized",'
        b'"details":[]}}\n'
    )
    assert call_error_line("no <JSON>", INVALID_ARGUMENT) == (
        b'{"error":"no \\u003cJSON\\u003e","code":3,"message":"no \\u003cJSON\\u003e","details":[]}\n'
    )
    assert error_of(Denied("other")) == (7, 403)
    assert INVALID_ARGUMENT == (3, 400)
    assert {error_of(RpcFailed(code, "")) for code in Code}  # each has its own
