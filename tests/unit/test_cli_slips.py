"""What commands say of slips and bad luck: which file, which name, and what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

# Imports what the program does, except one module, during which Ctrl-C is pressed.
INTERRUPTED = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "rich.console":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from gazette_platform.cli import start
sys.exit(start.{program}())
"""


@pytest.mark.parametrize("program", ["gazctl", "gazette"])
def test_ctrl_c_while_a_program_still_loads_leaves_no_traceback(program):
    code = INTERRUPTED.format(program=program)
    program_line = [sys.executable, "-c", code]
    done = subprocess.run(program_line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, f"{program}: error: interrupted\n")


@pytest.mark.parametrize("program", ["gazctl", "gazette"])
def test_installed_programs_begin_where_ctrl_c_is_looked_for(program):
    script = (Path(sys.executable).parent / program).read_text()
    assert f"from gazette_platform.cli.start import {program}" in script


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_named(tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    (tmp_path / "in").write_bytes(b"line\n")
    program = [sys.executable, "-m", "gazette_platform.cli.gazctl", "attach-uuids", "in"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.Popen(program, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    _, err = done.communicate(timeout=120)
    assert done.returncode == 1
    assert err.decode() == "gazctl: error: stdout: cannot write: No space left on device\n"


def test_help_on_a_full_disk_fails_in_one_line(monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    program = [sys.executable, "-m", "gazette_platform.cli.gazctl", "--help"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"gazctl: error: No space left on device\n"


def test_a_full_disk_ends_a_read_with_the_name_of_its_file_and_keeps_offsets(
    gazctl, broker, tmp_path
):
    broker.journal("a/one", b"x" * 300_000)
    (tmp_path / "o.json").write_text('{"a/one": 10}')
    flags = ["-o", "/dev/full", "--offsets", "o.json", "--offsets-out", "o.json"]
    result = gazctl("read", "a/one", *flags)
    assert result.code == 1
    assert result.err == "gazctl: error: /dev/full: cannot write: No space left on device\n"
    assert orjson.loads((tmp_path / "o.json").read_bytes()) == {"a/one": 10, "a/one#created": 1}


def test_offsets_of_journals_that_are_not_read_are_reported(gazctl, broker, tmp_path):
    broker.journal("a/one", b"content")
    (tmp_path / "o.json").write_text('{"a/one": 3, "a/onne": 5, "b/two": 1}')
    result = gazctl("read", "a/one", "--offsets", "o.json")
    assert (result.code, result.out) == (0, b"tent")
    assert (
        result.err == "offsets are given of a/onne and 1 others, which the command does not read\n"
    )
    (tmp_path / "o.json").write_text('{"a/one": 3}')
    assert gazctl("read", "a/one", "--offsets", "o.json").err == ""


def test_an_append_names_the_journal_or_how_many_it_went_to(gazctl, broker, tmp_path):
    for name in ("a/one", "a/two", "b/one"):
        broker.journal(name)
    (tmp_path / "in").write_bytes(b"a/one\nx\n")
    flags = ["-i", "in", "-f", "lines"]
    said = gazctl("append", "a/", *flags, "-m", "direct").err
    assert said == "appended 1 record, 2 bytes, to 1 of 2 journals\n"
    assert gazctl("append", "b/one", *flags).err == "appended 2 records, 8 bytes, to b/one\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fragments", "a/one", "--url-ttl", "10"], '--url-ttl: missing unit in duration "10"'),
        (["top", "a/one", "-d", "5"], '--interval: missing unit in duration "5"'),
        (["flush", "a/one", "--timeout", "x"], '--timeout: invalid duration "x"'),
    ],
)
def test_durations_without_unit_are_reported_how_to_be_written(gazctl, broker, arguments, text):
    broker.journal("a/one")
    result = gazctl(*arguments)
    assert result.code == 1
    assert result.err == f"gazctl: error: {text} (write it as 500ms, 10s or 1h30m)\n"


def test_times_in_the_wrong_order_are_reported_as_they_were_meant(gazctl, broker):
    broker.journal("a/one")
    result = gazctl("fragments", "a/one", "--from", "2026-01-02", "--to", "2026-01-01")
    assert result.code == 1
    assert result.err == (
        "gazctl: error: --to: ends at 2026-01-01T00:00:00Z, not after --from (2026-01-02T00:00:00Z)\n"
    )
    assert not broker.calls
