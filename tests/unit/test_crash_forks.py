"""Processes of the crash harnesses: what threads are told of those that they fork side by side."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

import pytest

from gazette_platform.testing.waiting import block_for, wait_until
from tests.lake_crash.forks import Forks

TIMEOUT_S = 60.0


def exits(code):
    os._exit(code)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stays(path):
    Path(path).touch()
    block_for(TIMEOUT_S)


@pytest.fixture(scope="module")
def forks():
    # A process of tests has one such server: this is the one that others here need, too.
    return Forks("tests.lake_crash.preload")


def test_each_thread_is_told_how_its_own_processes_ended(forks, monkeypatch):
    """However long reading takes, within which another thread may begin a process, and look at all others."""
    read_signed = forkserver.read_signed

    def read_late(pipe):
        block_for(0.02)
        return read_signed(pipe)

    monkeypatch.setattr(forkserver, "read_signed", read_late)

    def play(number):
        codes = []
        for _ in range(5):
            codes.append(forks.begin(exits, number, name="exits").end(TIMEOUT_S))
            codes.append(forks.begin(is_killed, name="is killed").end(TIMEOUT_S))
        return codes

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(play, (3, 4)))
    assert found == [[3, -signal.SIGKILL] * 5, [4, -signal.SIGKILL] * 5]


def test_who_does_not_end_in_time_is_killed_and_nobody_takes_that_for_its_end(forks, tmp_path):
    process = forks.begin(stays, str(tmp_path / "runs"), name="stays")
    wait_until((tmp_path / "runs").exists, timeout_s=TIMEOUT_S)
    assert not process.has_ended()
    assert process.end(0.05) is None


def test_who_is_killed_has_that_as_its_end(forks, tmp_path):
    process = forks.begin(stays, str(tmp_path / "runs"), name="stays")
    process.kill()
    assert process.has_ended(TIMEOUT_S)
    assert process.end(TIMEOUT_S) == -signal.SIGKILL
