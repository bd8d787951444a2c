"""`gazctl attach-uuids`."""

from __future__ import annotations

import io
import re
import sys
import types

import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.message import Flags, parse_uuid, unix_ns_of
from gazette_platform.ops.clock import SystemClock


@pytest.fixture
def attach(monkeypatch, tmp_path, capfdbinary):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(stdin)))
        code = main(["attach-uuids", *map(str, args)])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def test_each_line_gets_a_later_uuid_of_one_producer(attach):
    code, out, _ = attach(stdin=b"one\r\ntwo,\xff\n\nlast\r")
    assert code == 0
    rows = [line.split(b",", 1) for line in out.removesuffix(b"\n").split(b"\n")]
    assert [line for _, line in rows] == [b"one", b"two,\xff", b"", b"last\r"]
    parts = [parse_uuid(uuid.decode()) for uuid, _ in rows]
    assert len({part.producer for part in parts}) == 1
    clocks = [part.clock for part in parts]
    assert clocks == sorted(set(clocks))
    assert {part.flags for part in parts} == {Flags.OUTSIDE_TXN}
    assert abs(unix_ns_of(clocks[0]) / 1e9 - SystemClock().unix_s()) < 60


def test_files_may_have_headers_and_output_a_shape(attach, tmp_path):
    (tmp_path / "a").write_bytes(b"head\n1\n2\n")
    (tmp_path / "b").write_bytes(b"head\n3")
    code, out, _ = attach("--skip-header", "--template", "<{{ .Line }}|{{.UUID}}>é", "a", "b")
    assert code == 0
    rows = out.decode().removesuffix("é").split("é")
    assert [row[:3] for row in rows] == ["<1|", "<2|", "<3|"]
    assert all(parse_uuid(row[3:-1]).flags == Flags.OUTSIDE_TXN for row in rows)


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("<{{- .Line -}}  >{{ .UUID }}\n", rb"<a\tb>(.{36})\n"),
        ('{{ printf "%s:%q" .UUID .Line }}\n', rb'(.{36}):"a\\tb"\n'),
        ('{{ .UUID.String }}{{ if eq .Line "" }}-{{ else }}+{{ end }}\n', rb"(.{36})\+\n"),
    ],
)
def test_templates_are_gos(attach, template, pattern):
    code, out, err = attach("--template", template, stdin=b"a\tb\n")
    assert code == 0, err
    found = re.fullmatch(pattern, out)
    assert found is not None, out
    assert parse_uuid(found[1].decode()).flags == Flags.OUTSIDE_TXN


def test_template_takes_the_longest_line(attach):
    line = b"\xff" * (4 << 20)
    code, out, err = attach("--template", '{{ printf "%s" .Line }}', stdin=line)
    assert (code, out == line) == (0, True), err


def test_what_cannot_work_is_said_in_one_line(attach, tmp_path):
    (tmp_path / "long").write_bytes(b"12345\n123456\n")
    for arguments, text in (
        (("--max-length", 5, "long"), "line 2 of long has more than 5 bytes"),
        (("none",), "FILE: cannot read none: No such file"),
        (
            ("--template", "{{.Uuid}}", "long"),
            "--template: template: line 1: can't evaluate field Uuid",
        ),
        (("--template", "{{.Line", "long"), "--template: template: line 1: unclosed action"),
    ):
        code, _, err = attach(*arguments)
        assert (code, err.count("\n")) == (1, 1)
        assert text in err
    assert attach("--max-length", 6, "long")[0] == 0
