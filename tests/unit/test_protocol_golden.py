"""Golden vectors of the contract, made by the real Go code: our bytes and texts are the same."""

import json
from pathlib import Path

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    Fragment,
    JournalFlag,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    ProcessId,
    Route,
    SuspendLevel,
    SuspendSpec,
    fragment_json,
    message_jsonpb,
    parse_fragment_path,
    route_text,
    selector_json,
    validate_journal_name,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree, to_journal_tree

_TEXT = (Path(__file__).parent / "data" / "golden_vectors.txt").read_text()
_LINES = {
    line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in _TEXT.splitlines() if " " in line
}
_YAML = _TEXT.split("\nYAML\n")[1].split("\n\nJSONPB")[0] + "\n"


def _raw(name: str) -> bytes:
    return bytes.fromhex(_LINES[name].split()[0])


@pytest.mark.parametrize(
    ("name", "value_type"),
    [
        ("JournalSpec", JournalSpec),
        ("JournalSpecEmpty", JournalSpec),
        ("BrokerSpec", BrokerSpec),
        ("BrokerSpecExiting", BrokerSpec),
        ("Route", Route),
        ("RouteNoPrimary", Route),
        ("Fragment", Fragment),
        ("FragmentEmpty", Fragment),
    ],
)
def test_bytes_survive_a_round_trip(name, value_type):
    raw = _raw(name)
    value = value_type.from_pb(getattr(pb, value_type.__name__).FromString(raw))
    assert value.to_pb().SerializeToString() == raw


def _journal_spec() -> JournalSpec:
    return JournalSpec.from_pb(pb.JournalSpec.FromString(_raw("JournalSpec")))


def test_journal_spec_has_the_fields_that_were_encoded():
    spec = _journal_spec()
    assert spec.name == "a/journal"
    assert spec.replication == 3
    assert spec.labels == LabelSet.of(aa="11", bb="")
    assert spec.fragment.length == 1 << 20
    assert spec.fragment.codec is CompressionCodec.GZIP
    assert spec.fragment.stores == ("s3://bucket/p/",)
    assert spec.fragment.refresh_interval_ns == 300 * 10**9
    assert spec.fragment.retention_ns == 0
    assert spec.fragment.flush_interval_ns == 3600 * 10**9
    assert spec.fragment.path_postfix_template == "x"
    assert spec.flags is JournalFlag.O_RDWR
    assert spec.max_append_rate == 99
    assert spec.suspend == SuspendSpec(SuspendLevel.PARTIAL, 7)
    spec.validate()


def test_broker_spec_and_routes_have_the_fields_that_were_encoded():
    broker = BrokerSpec.from_pb(pb.BrokerSpec.FromString(_raw("BrokerSpecExiting")))
    assert broker == BrokerSpec(ProcessId("za", "broker-1"), "http://h:80", 1024, exiting=True)
    broker.validate()
    route = Route.from_pb(pb.Route.FromString(_raw("Route")))
    assert route == Route((ProcessId("za", "broker-1"), ProcessId("zb", "broker-2")), 0)
    assert route_text(route) == _LINES["RouteText"]
    assert Route.from_pb(pb.Route.FromString(_raw("RouteNoPrimary"))) == Route()


def test_fragment_names_and_paths():
    fragment = Fragment.from_pb(pb.Fragment.FromString(_raw("Fragment")))
    _, name, path = _LINES["Fragment"].split()
    assert fragment.content_name == name
    assert fragment.content_path == path
    assert parse_fragment_path("a/journal", name) == fragment
    empty = Fragment.from_pb(pb.Fragment.FromString(_raw("FragmentEmpty")))
    assert empty.content_name == _LINES["FragmentEmpty"].split()[1]
    assert parse_fragment_path("a/journal", empty.content_name) == empty


def test_replicate_request_bytes():
    message = pb.ReplicateRequest(acknowledge=True)
    codec = CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
    Fragment("a/journal", 6, 6, codec=codec).into_pb(message.proposal)
    LabelSet().into_pb(message.registers)
    assert pb.ReplicateRequest.FromString(_raw("ReplicateRequest")) == message


def test_yaml_of_a_journal():
    spec = _journal_spec()
    assert to_journal_tree([(spec, 0)]) == _YAML
    (change,) = parse_journal_tree(_YAML)
    assert change.spec == spec
    assert change.revision == 0


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def test_json_of_a_journal_and_a_fragment():
    assert _compact(message_jsonpb(_journal_spec().to_pb())) == _LINES["JSONPB"]
    fragment = Fragment.from_pb(pb.Fragment.FromString(_raw("Fragment")))
    assert _compact(fragment_json(fragment)) == _LINES["FragJSON"]


def test_json_of_claims():
    selector = LabelSelector(
        LabelSet(
            (
                Label("foo", "x/", prefix=True),
                Label("foo", "y/", prefix=True),
                Label("name", "a/journal"),
            )
        ),
        LabelSet.of(bar=""),
    )
    assert _compact({"cap": 16, "sel": selector_json(selector)}) == _LINES["ClaimsJSON"]
    empty = selector_json(LabelSelector())
    assert _compact({"cap": 2, "sel": empty}) == _LINES["ClaimsJSONEmptySel"]


def test_selector_text_is_canonical():
    text = _LINES["SelectorString"]
    assert str(LabelSelector.parse(text)) == text


def _quoted_vectors(kind: str) -> list[tuple[str, str]]:
    vectors = []
    for line in _TEXT.splitlines():
        if line.startswith(f'{kind} "'):
            head, _, outcome = line.removeprefix(f"{kind} ").partition(" => ")
            vectors.append((json.loads(head), outcome))
    assert vectors
    return vectors


@pytest.mark.parametrize(("text", "outcome"), _quoted_vectors("sel"))
def test_selector_parsing(text, outcome):
    if outcome.endswith("<nil>"):
        canonical = json.loads(outcome.removesuffix(" <nil>"))
        assert str(LabelSelector.parse(text)) == canonical
        assert LabelSelector.parse(canonical) == LabelSelector.parse(text)
    else:
        with pytest.raises(ValidationError) as raised:
            LabelSelector.parse(text)
        assert str(raised.value) == outcome.removeprefix('"" ')


@pytest.mark.parametrize(("name", "outcome"), _quoted_vectors("journal"))
def test_journal_names(name, outcome):
    if name == "../x":
        outcome = "must not have a '..' path segment (../x)"  # the one rule that we add
    if outcome == "<nil>":
        validate_journal_name(name, meta=True)
    else:
        with pytest.raises(ValidationError) as raised:
            validate_journal_name(name, meta=True)
        assert str(raised.value) == outcome


@pytest.mark.parametrize(
    ("codec", "extension"),
    [
        (line.split()[1], json.loads(line.split()[2]))
        for line in _TEXT.splitlines()
        if line.startswith("codec ")
    ],
)
def test_codec_extensions(codec, extension):
    assert CompressionCodec[codec].extension == extension
    assert CompressionCodec.of_extension(extension.upper()) is CompressionCodec[codec]
