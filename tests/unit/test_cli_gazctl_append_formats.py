"""`gazctl journals append`: what it warns about, and what it changes if asked to."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import pytest
import zstandard


def gzipped(content):
    """As gzip makes it at any time: workers must collect the same tests."""
    return gzip.compress(content, mtime=0)


RECORDS = [{"id": number, "note": 'a "b", ]}' * 3, "price": 1.5} for number in range(3000)]
LINES = b"".join(json.dumps(each).encode() + b"\n" for each in RECORDS)


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.fixture
def journal(broker):
    return broker.journal("a/one")


@pytest.fixture
def append(gazctl, journal, tmp_path):
    """Append content as a file; return the result, and what is in the journal then."""

    def run(content, *options, name="in"):
        (tmp_path / name).write_bytes(content)
        result = gazctl("append", "a/one", name, *options)
        return result, gazctl("read", "-l", "name=a/one").out

    return run


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (b"", "in is empty"),
        (b"\n \n", "in has nothing but blanks"),
        (gzipped(LINES), "in is compressed by gzip"),
        (zstandard.compress(LINES), "--decompress"),
        (zipped(a=b"x"), "--decompress"),
        (b"PAR1\x15...", "in is a Parquet file"),
        (b'[{"a": 1}]\n', "--framing json-array"),
        (b'{\n  "a": 1\n}\n', "--framing json-array"),
        ("a,b\n1,2\n".encode("utf-16"), "--encoding utf-16"),
        ("Köln,1\nBonn,2\n".encode("cp1252"), "--encoding windows-1252"),
        (b'{"a": 1}\n{"a": 2}', "in does not end with a newline"),
        (b"a,1\nb,2", "in does not end with a newline"),
        (b'id;note\n1;"two\nlines"\n2;x\n', "in is CSV with line breaks in quoted fields"),
        (b'id;note\n1;"one line"\n2;x\n', None),
        (b'{"a": 1}\noops\n', None),
        (b"a;1\nb;2\n", None),
        (b"some words", None),
        (b"\x66\x33\x93\x36\x01\x00\x00\x00x", None),
    ],
)
def test_append_warns_and_changes_no_byte(append, content, warning):
    result, held = append(content)
    assert result.code == 0
    assert held == content
    warnings = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_append_to_a_journal_of_another_content_type_warns_of_no_format(gazctl, broker, tmp_path):
    spec = b"""
name: b/avro
replication: 1
labels: [{name: content-type, value: application/vnd.apache.avro}]
fragment: {length: 1048576, compression_codec: NONE, stores: [file:///], refresh_interval: 1m, retention: 1h}
"""
    assert gazctl("apply", stdin=spec).code == 0
    (tmp_path / "in").write_bytes(b"Obj\x01....")
    assert "warning" not in gazctl("append", "b/avro", "in").err


@pytest.mark.parametrize(
    "content",
    [
        gzipped(LINES),
        gzipped(LINES[:1000]) + gzipped(LINES[1000:]),
        zstandard.compress(LINES),
        zstandard.compress(LINES[:1000]) + zstandard.compress(LINES[1000:]),
        bz2.compress(LINES[:1000]) + bz2.compress(LINES[1000:]),
        lzma.compress(LINES[:1000]) + lzma.compress(LINES[1000:]),
        zipped(**{"lines.jsonl": LINES}),
        LINES,
    ],
    ids=["gzip", "members", "zstd", "frames", "bzip2", "xz", "zip", "plain"],
)
def test_append_decompresses(append, content):
    result, held = append(content, "--decompress")
    assert (result.code, held) == (0, LINES)
    assert "warning" not in result.err


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (gzipped(LINES)[:-20], "in cannot be decompressed"),
        (zstandard.compress(LINES)[:-20], "in cannot be decompressed"),
        (lzma.compress(LINES)[:-20], "in cannot be decompressed"),
        (bz2.compress(LINES)[:-20], "in cannot be decompressed"),
        (b"\x1f\x8b\x08 and so on", "in cannot be decompressed"),
        (zipped(a=LINES)[:-20], "in cannot be decompressed"),
        (zipped(a=b"x", b=b"y"), "zip archive of 2 files (a, b): unpack it"),
        (zipped(), "zip archive of 0 files"),
    ],
)
def test_damaged_archive_appends_nothing(append, content, error):
    result, held = append(content, "--decompress")
    assert (result.code, held) == (1, b"")
    assert error in result.err
    assert result.err.count("\n") == 1


def test_bomb_is_decompressed_in_bounded_steps(append, journal):
    zeros = gzipped(gzipped(b"\n" * (64 << 20)))
    result, held = append(gzip.decompress(zeros), "--decompress")
    assert result.code == 0
    assert len(held) == 64 << 20


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "windows-1252", "utf-8-sig"])
def test_append_transcodes(append, codec):
    text = "id;Straße\r\n" + "1;Königsallee\r\n" * 100_000
    result, held = append(text.encode(codec), "--encoding", codec)
    assert (result.code, held.decode()) == (0, text)
    assert "warning" not in result.err


def test_append_decompresses_before_it_transcodes(append):
    text = "é,1\n" * 1000
    content = gzipped(text.encode("utf-16"))
    result, held = append(content, "--decompress", "--encoding", "utf-16", "--framing", "lines")
    assert (result.code, held.decode()) == (0, text)


@pytest.mark.parametrize(
    ("content", "encoding", "error"),
    [
        (b"\x81", "windows-1252", "in is not text in windows-1252"),
        (b"a\0b", "utf-16-le", "in is not text in utf-16-le"),
        (b"x", "utf-17", "'utf-17' is not an encoding"),
        (b"x", "hex", "'hex' is not an encoding"),
        (b"x", "base64", "'base64' is not an encoding"),
    ],
)
def test_wrong_encoding_appends_nothing(append, content, encoding, error):
    result, held = append(content, "--encoding", encoding)
    assert (result.code, held) == (1, b"")
    assert error in result.err


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(RECORDS).encode(),
        json.dumps(RECORDS, indent=2).encode(),
        "\ufeff".encode() + json.dumps(RECORDS, indent="\t").replace("\n", "\r\n").encode(),
        b"\n\n".join(json.dumps(each, indent=1).encode() for each in RECORDS),
        b"".join(json.dumps(each).encode() for each in RECORDS),
        LINES,
        json.dumps(RECORDS[:9]).encode() + json.dumps(RECORDS[9:]).encode(),
    ],
    ids=["array", "indented", "windows", "pretty", "joined", "lines", "arrays"],
)
def test_json_values_become_lines(append, content):
    result, held = append(content, "--framing", "json-array")
    assert result.code == 0
    assert [json.loads(line) for line in held.split(b"\n")[:-1]] == RECORDS
    assert f"appended {len(RECORDS)} records" in result.err
    assert "warning" not in result.err


def test_json_values_keep_digits_order_and_texts(append):
    content = b'[{"b": 1.10, "a": 123456789012345678901234567890,\n "b": 1E+2, "t": "x\\n  y"} , 7]'
    result, held = append(content, "--framing", "json-array")
    assert result.code == 0
    assert held == (
        b'{"b": 1.10, "a": 123456789012345678901234567890,"b": 1E+2, "t": "x\\n  y"}\n7\n'
    )


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'[{"a": 1}, {"a": ]', "in: value 2 is not JSON: Expecting value"),
        (b'[{"a": 1}', "unexpected EOF: the array has no ]"),
        (b'[{"a": NaN}]', "value 1 is not JSON: it has NaN"),
        (gzipped(b"[1]"), "compressed by gzip: append it decompressed"),
        (b"a,b\n1,2\n", "value 1 is not JSON"),
        ("[1]".encode("utf-16"), "--encoding utf-16"),
    ],
)
def test_json_that_is_none_is_an_error(append, content, error):
    result, _ = append(content, "--framing", "json-array")
    assert result.code == 1
    assert error in result.err


def test_keys_before_records_need_lines(append):
    result, _ = append(b"[1]", "--framing", "json-array", "--mapping", "modulo")
    assert result.code != 0
    assert "needs --framing lines or fixed" in result.err
