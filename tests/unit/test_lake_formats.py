"""Formats of content are recognised from its first bytes, and tables of them are made or refused."""

import bz2
import doctest
import gzip
import io
import json
import lzma
import zipfile

import pytest
import zstandard

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.inference import infer
from gazette_platform.lake.inference.infer import format_of, infer_spec, refusal
from gazette_platform.lake.spec import formats
from gazette_platform.lake.spec.formats import (
    HEAD_BYTES,
    ContentFormat,
    Kind,
    recognize,
    remedy,
    title,
)
from gazette_platform.message import framing


def gzipped(content):
    """As gzip makes it at any time: workers must collect the same tests."""
    return gzip.compress(content, mtime=0)


RECORDS = [{"id": number, "name": f"n{number}"} for number in range(40)]
LINES = b"".join(json.dumps(each).encode() + b"\n" for each in RECORDS)


def zipped(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), "x")
    return out.getvalue()


@pytest.mark.parametrize("module", [formats, infer, framing])
def test_examples_of_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("content", "kind", "advice"),
    [
        (gzipped(LINES), Kind.GZIP, "--decompress"),
        (zstandard.compress(LINES), Kind.ZSTD, "--decompress"),
        (bz2.compress(LINES), Kind.BZIP2, "--decompress"),
        (lzma.compress(LINES), Kind.XZ, "--decompress"),
        (zipped("a.csv"), Kind.ZIP, "--decompress"),
        (zipped("[Content_Types].xml", "xl/workbook.xml"), Kind.XLSX, "save each sheet as CSV"),
        (b"PAR1\x15\x04", Kind.PARQUET, "gazctl sql"),
        (b"Obj\x01\x04\x16avro.schema", Kind.AVRO, "JSON lines or CSV"),
        (b"ORC\x11\x00", Kind.ORC, "JSON lines or CSV"),
        (b"\x66\x33\x93\x36\x05\x00\x00\x00hello", Kind.FIXED, "JSON lines or CSV"),
        (bytes(range(256)) * 4, Kind.BINARY, "JSON lines or CSV"),
        (json.dumps(RECORDS).encode(), Kind.JSON_ARRAY, "--framing json-array"),
        (json.dumps(RECORDS, indent=2).encode(), Kind.JSON_ARRAY, "--framing json-array"),
        (b'[\n{"a":1},\n{"a":2}\n]\n', Kind.JSON_ARRAY, "--framing json-array"),
        (b"[]", Kind.JSON_ARRAY, "--framing json-array"),
        (json.dumps(RECORDS[0], indent=2).encode(), Kind.JSON_VALUES, "--framing json-array"),
        (b'{"a":1}{"a":2}', Kind.JSON_VALUES, "--framing json-array"),
        (LINES, Kind.JSON_LINES, ""),
        (b"\xef\xbb\xbf" + LINES, Kind.JSON_LINES, ""),
        (b'oops\n{"a": 1}\n{"a":\n[\n{"a": 2}\n', Kind.JSON_LINES, ""),
        (b'{"a": 1\n{"a": 2}\n', Kind.JSON_LINES, ""),
        (b'{"a":\n1}\n' + b'{"a": 2}\n' * 9, Kind.JSON_LINES, ""),
        (b"[1]\n" + b'{"a": 2}\n' * 9, Kind.JSON_LINES, ""),
        (b'{"a": "\xe9"}\n' * 5, Kind.JSON_LINES, "--encoding windows-1252"),
        (b"[2026-01-01 12:00] INFO started\n", Kind.TEXT, ""),
        (b"plain\nwords\n", Kind.TEXT, ""),
        (b"", Kind.EMPTY, ""),
        (b" \n\n", Kind.EMPTY, ""),
    ],
)
def test_content_is_recognised(content, kind, advice):
    found = recognize(content[:HEAD_BYTES])
    assert found.kind is kind
    assert advice in remedy(found)
    assert bool(remedy(found)) == bool(advice)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({f"key {n}": "v" * 200 for n in range(1000)}, indent=4).encode(),
        json.dumps([{"long": "v" * 200_000}]).encode(),
        json.dumps([{"long": "v" * 200_000}], indent=1).encode(),
    ],
)
def test_value_longer_than_the_head_is_json(content):
    assert len(content) > HEAD_BYTES
    assert recognize(content[:HEAD_BYTES]).kind in {Kind.JSON_ARRAY, Kind.JSON_VALUES}


@pytest.mark.parametrize(
    ("text", "delimiter", "header"),
    [
        ("id,name\n1,a\n2,b\n", ",", ("id", "name")),
        ("id;price\n1;2,50\n2;3,10\n", ";", ("id", "price")),
        ("1;2,50;3,5\n2;3,10;4,5\n", ";", ()),
        ("id\tname\n1\ta, b\n2\tc\n", "\t", ("id", "name")),
        ("id|name\n1|a\n", "|", ("id", "name")),
        ('note,tags\n"a;b","x;y"\n"c;d","z;w"\n', ",", ()),
        ('"id","Unit price"\r\n1,2.5\r\n', ",", ("id", "Unit price")),
        ("\ufeffid,name\n1,a\n", ",", ("id", "name")),
        ("name,city\nAnna,Rome\nname,city\nBob,Bonn\n", ",", ("name", "city")),
        ("name,day\nAnna,2026-01-02\n", ",", ("name", "day")),
        ("Anna,Rome\nBob,Bonn\n", ",", ()),
        # Magic bytes that are letters.
        ("ORCID,name\n1,a\n2,b\n", ",", ("ORCID", "name")),
        ("PAR1;PAR2\n1;2\n", ";", ("PAR1", "PAR2")),
        ("BZh9,BZh8\n1,2\n", ",", ("BZh9", "BZh8")),
        ("Anna,1\nBob,2\n", ",", ()),
        ('1,"a ""quoted"" word"\n2,b\n', ",", ()),
    ],
)
def test_csv_is_recognised_with_delimiter_and_header(text, delimiter, header):
    assert recognize(text.encode()) == ContentFormat(Kind.CSV, "utf-8", delimiter, header)


@pytest.mark.parametrize(
    ("codec", "encoding"),
    [
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", "utf-32"),
        ("cp1252", "windows-1252"),
        ("utf-8", "utf-8"),
    ],
)
def test_encoding_is_recognised(codec, encoding):
    text = "id;Straße\n1;Königsallee\n2;Größe €\n"
    found = recognize(text.encode(codec))
    assert (found.kind, found.encoding, found.delimiter) == (Kind.CSV, encoding, ";")
    assert found.header[0] == "id"
    assert ("--encoding" in remedy(found)) == (encoding != "utf-8")
    assert text.encode(codec).decode(found.encoding) == text


def test_character_cut_at_the_end_of_the_head_is_utf8():
    assert recognize(b"a,b\n" + "1,é".encode()[:-1]).encoding == "utf-8"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzipped(LINES), "compressed by gzip"),
        (b"\n" + zstandard.compress(LINES), "compressed by zstd"),
        (b"PAR1\x15,", "a Parquet file"),
        (zipped("xl/workbook.xml"), "XLSX"),
        (LINES.decode().encode("utf-16"), "text in UTF-16"),
        (json.dumps(RECORDS[:2], indent=1).encode(), "a JSON array"),
        (json.dumps(RECORDS[0], indent=1).encode(), "pretty-printed"),
    ],
)
def test_tables_of_other_content_are_refused_by_its_name(content, says):
    lines = content.split(b"\n")
    assert says in refusal(format_of(lines))
    with pytest.raises(SchemaMismatch, match=says):
        infer_spec("a.b", "name=a", lines)


def test_json_lines_with_bad_lines_are_json():
    lines = [b'{"a": 1}', *[b"x,%d" % n for n in range(5)]]
    found = infer_spec("a.b", "name=a", lines)
    assert found.spec.format == "json"
    assert "5 lines are not JSON objects" in found.remarks[0]
    # One stray object in a long table of CSV does not make it JSON.
    assert format_of([b'{"a": 1}', *[b"x,%d" % n for n in range(50)]]).kind is Kind.CSV


def test_windows_text_is_a_table_with_a_remark():
    text = "id;Straße\n1;Königsallee\n2;Rom\n".encode("cp1252")
    found = infer_spec("a.b", "name=a", text.split(b"\n"))
    assert (found.spec.delimiter, found.spec.header) == (";", True)
    assert any("--encoding windows-1252" in remark for remark in found.remarks)
    assert "text in Windows-1252" in title(recognize(text))


def test_spec_of_csv_has_delimiter_header_and_names():
    lines = b'\xef\xbb\xbfid;"Unit price";Menge\r\n1;2,5;3\r\nid;Unit price;Menge\r\n2;3,5;4'.split(
        b"\n"
    )
    found = infer_spec("a.b", "name=a", lines)
    spec = found.spec
    assert (spec.format, spec.separator, spec.header, found.records) == ("csv", ";", True, 2)
    assert [(c.name, c.key) for c in spec.columns] == [
        ("id", "id"),
        ("unit_price", "Unit price"),
        ("menge", "Menge"),
    ]
