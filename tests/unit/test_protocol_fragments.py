"""Names, paths and parsing of fragments (V6), durations, enums."""

from dataclasses import replace

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import duration_from_pb, duration_into_pb
from gazette_platform.protocol import (
    ZERO_SUM,
    CompressionCodec,
    Fragment,
    Status,
    format_duration,
    parse_duration,
    parse_fragment_path,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

_SUM = bytes(range(1, 21))
_HEX = _SUM.hex()
_FRAGMENT = Fragment("a/journal", 1234567890, 1 << 42, _SUM, CompressionCodec.GZIP)
_BASE = f"00000000499602d2-0000040000000000-{_HEX}"


def test_v6_names_and_paths():
    assert _FRAGMENT.content_length == (1 << 42) - 1234567890
    assert _FRAGMENT.content_name == f"{_BASE}.gz"
    assert _FRAGMENT.content_path == f"a/journal/{_BASE}.gz"
    postfixed = replace(_FRAGMENT, path_postfix="date=2024-01-02/hour=05")
    assert postfixed.content_path == f"a/journal/date=2024-01-02/hour=05/{_BASE}.gz"
    offloaded = replace(_FRAGMENT, codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION)
    assert offloaded.content_name == _BASE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{_BASE}.gz", _FRAGMENT),
        (f"{_BASE}.GZIP", _FRAGMENT),
        (f"{_BASE}.raw", replace(_FRAGMENT, codec=CompressionCodec.NONE)),
        (f"{_BASE}.zst", replace(_FRAGMENT, codec=CompressionCodec.ZSTANDARD)),
        (f"{_BASE}.zstandard", replace(_FRAGMENT, codec=CompressionCodec.ZSTANDARD)),
        (f"{_BASE}.snappy", replace(_FRAGMENT, codec=CompressionCodec.SNAPPY)),
        (_BASE, replace(_FRAGMENT, codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION)),
        (f"{_BASE}.gzod", replace(_FRAGMENT, codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION)),
        (f"/a=1/b/{_BASE}.gz", replace(_FRAGMENT, path_postfix="a=1/b")),
        (f"499602d2-40000000000-{_HEX.upper()}.gz", _FRAGMENT),
        (f"v1.2/{_BASE}.gz", replace(_FRAGMENT, path_postfix="v1.2")),
    ],
)
def test_v6_parsing(path, expected):
    assert parse_fragment_path("a/journal", path) == expected


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{_BASE}.XXX", "unrecognized compression extension: .XXX"),
        ("0-1.gz", "wrong Fragment format: 0-1.gz"),
        (f"0-1-{_HEX}-2.gz", f"wrong Fragment format: 0-1-{_HEX}-2.gz"),
        (f"-1-2-{_HEX}.gz", f"wrong Fragment format: -1-2-{_HEX}.gz"),
        ("", "wrong Fragment format: "),
        ("dir/", "wrong Fragment format: dir/"),
        (f"xx-1-{_HEX}.gz", 'Begin: strconv.ParseInt: parsing "xx": invalid syntax'),
        (f"0x1-2-{_HEX}.gz", 'Begin: strconv.ParseInt: parsing "0x1": invalid syntax'),
        (f"0_1-2-{_HEX}.gz", 'Begin: strconv.ParseInt: parsing "0_1": invalid syntax'),
        (f"-1-{_HEX}.gz", 'Begin: strconv.ParseInt: parsing "": invalid syntax'),
        (f"0-٣-{_HEX}.gz", 'End: strconv.ParseInt: parsing "٣": invalid syntax'),
        (
            f"0-8000000000000000-{_HEX}.gz",
            'End: strconv.ParseInt: parsing "8000000000000000": value out of range',
        ),
        (f"0-1-{_HEX[:-1]}Q.gz", "Sum: encoding/hex: invalid byte: U+0051 'Q'"),
        (f"0-1-{_HEX[:-1]}.gz", "Sum: encoding/hex: odd length hex string"),
        (f"0-1-{_HEX[:-2]}.gz", "invalid SHA1Sum length: 19"),
        (f"0-1-{_HEX}00.gz", "invalid SHA1Sum length: 21"),
        (f"2-1-{_HEX}.gz", "expected Begin <= End (have 2, 1)"),
        (f"a//b/0-1-{_HEX}.gz", "PathPostfix: must be a clean path (a//b)"),
        (f"a b/0-1-{_HEX}.gz", "PathPostfix: not a valid token (a b)"),
    ],
)
def test_v6_parsing_errors(path, text):
    with pytest.raises(ValidationError) as raised:
        parse_fragment_path("a/journal", path)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("fragment", "text"),
    [
        (replace(_FRAGMENT, journal="/bad"), "Journal: cannot begin with '/' (/bad)"),
        (replace(_FRAGMENT, begin=-1), "invalid Begin (-1; expected >= 0)"),
        (replace(_FRAGMENT, begin=5, end=4), "expected Begin <= End (have 5, 4)"),
        (
            replace(_FRAGMENT, codec=CompressionCodec.from_wire(7)),
            "CompressionCodec: invalid value (7)",
        ),
        (
            replace(_FRAGMENT, path_postfix="x" * 513),
            "PathPostfix: invalid length (513; expected 0 <= length <= 512)",
        ),
        (replace(_FRAGMENT, path_postfix="/x"), "PathPostfix: cannot begin with '/' (/x)"),
        (
            replace(_FRAGMENT, path_postfix="../../x"),
            "PathPostfix: must not have a '..' path segment (../../x)",
        ),
    ],
)
def test_v6_fragment_that_breaks_a_rule(fragment, text):
    with pytest.raises(ValidationError) as raised:
        fragment.validate()
    assert str(raised.value) == text


def test_fragment_survives_its_message_with_all_fields():
    full = replace(
        _FRAGMENT, backing_store="s3://b/p/?x=y", mod_time=1_700_000_000, path_postfix="a/b"
    )
    full.validate()
    assert Fragment.from_pb(full.to_pb()) == full
    assert Fragment.from_pb(pb.Fragment()) == Fragment("", 0, 0, ZERO_SUM, CompressionCodec.INVALID)
    assert full != _FRAGMENT


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5m", 300 * 10**9),
        ("1h2m3.5s", 3723500000000),
        ("-1.5h", -5400 * 10**9),
        ("+3ms", 3_000_000),
        ("7us", 7000),
        ("7µs", 7000),
        ("7\u03bcs", 7000),
        (".5s", 500_000_000),
        ("1.s", 10**9),
        ("1s1s", 2 * 10**9),
        ("0.3333333333333333333h", 1199999999999),
        ("2562047h47m16.854775807s", (1 << 63) - 1),
    ],
)
def test_durations_that_go_reads(text, nanoseconds):
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'invalid duration ""'),
        ("-", 'invalid duration "-"'),
        (".s", 'invalid duration ".s"'),
        ("s", 'invalid duration "s"'),
        ("3", 'missing unit in duration "3"'),
        ("1h3", 'missing unit in duration "1h3"'),
        ("1d", 'unknown unit "d" in duration "1d"'),
        ("1 h", 'unknown unit " h" in duration "1 h"'),
        ("3000000h", 'invalid duration "3000000h"'),
    ],
)
def test_durations_that_go_refuses(text, error):
    with pytest.raises(ValidationError) as raised:
        parse_duration(text)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (245_000_000_000, "4m5s"),
        (245_001_000_000, "4m5.001s"),
        (18367_001_000_000, "5h6m7.001s"),
        (480_000_000_001, "8m0.000000001s"),
        (3600 * 10**9, "1h0m0s"),
        (-90 * 10**9, "-1m30s"),
    ],
)
def test_durations_as_go_prints_them(nanoseconds, text):
    assert format_duration(nanoseconds) == text


@pytest.mark.parametrize("nanoseconds", [0, 1, -1, 1_500_000_000, -1_500_000_000])
def test_durations_in_messages_carry_their_sign_in_both_parts(nanoseconds):
    message = pb.JournalSpec.Fragment()
    duration_into_pb(nanoseconds, message.retention)
    assert message.HasField("retention")
    assert duration_from_pb(message.retention) == nanoseconds
    assert message.retention.seconds * nanoseconds >= 0
    assert message.retention.nanos * nanoseconds >= 0


def test_enums_are_those_of_the_wire():
    assert {s.name: s.value for s in Status} == dict(pb.Status.items())
    assert {c.name: c.value for c in CompressionCodec} == dict(pb.CompressionCodec.items())


def test_unknown_enum_numbers_are_carried_and_refused():
    unknown = Status.from_wire(1000)
    assert unknown == 1000
    assert not unknown.is_known
    assert Status.from_wire(0) is Status.OK
    Status.OK.require_known()
    with pytest.raises(ValidationError, match=r"invalid value \(1000\)"):
        unknown.require_known()
