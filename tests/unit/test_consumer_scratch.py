"""Folders of processes for files of shards, and what is left of processes that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gazette_platform.consumer.process import Scratch

_LIVES = """
import sys, pathlib
from gazette_platform.consumer.process import Scratch
scratch = Scratch(pathlib.Path(sys.argv[1]))
scratch.open()
(scratch.path / "state").write_text("much")
print(scratch.path, flush=True)
sys.stdin.read()
"""


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_a_folder_is_deleted_with_what_is_in_it(tmp_path):
    (tmp_path / "theirs").touch()
    scratch = Scratch(tmp_path)
    scratch.open()
    assert scratch.path.parent == tmp_path
    (scratch.path / "shard-000-1").mkdir()
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    for _ in "12":
        scratch.close()
        assert names(tmp_path) == ["theirs"]


def test_what_killed_processes_left_is_deleted_and_nothing_else(tmp_path):
    arguments = [sys.executable, "-c", _LIVES, str(tmp_path)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        ours = Scratch(tmp_path)
        try:
            assert other.stdout is not None
            theirs = other.stdout.readline().strip()
            ours.open()
            kept = tmp_path / "gazette-consumer-by-hand"
            kept.mkdir()
            ours.sweep()
            assert Path(theirs, "state").exists()
            other.kill()
            other.wait()
            ours.sweep()
            assert names(tmp_path) == sorted([ours.path.name, f"{ours.path.name}.lock", kept.name])
        finally:
            other.kill()
            ours.close()


def test_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "gazette-consumer-1").symlink_to(elsewhere)
    (parent / "gazette-consumer-1.lock").touch()
    (parent / "gazette-consumer-2.lock").symlink_to(elsewhere / "file")
    Scratch(parent).sweep()
    assert (elsewhere / "file").exists()
    assert "gazette-consumer-2.lock" in names(parent)


@pytest.mark.parametrize("what", ["gone", "locked"])
def test_without_a_folder_of_its_own_files_go_where_they_went(tmp_path, what, monkeypatch, caplog):
    parent = tmp_path / "parent"
    if what == "locked":
        parent.mkdir()

        def refuse(*_):
            raise OSError(37, "no locks available")

        monkeypatch.setattr("gazette_platform.consumer.process.fcntl.flock", refuse)
    scratch = Scratch(parent)
    scratch.open()
    assert scratch.path == parent
    assert "no folder of this process alone can be made there" in caplog.text
    scratch.close()
    assert what == "gone" or names(parent) == []
