"""How a program ends: all that it began is done, and its interpreter stays until the process is gone."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.parametrize("code", [0, 1, 130])


def _ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_was_begun_is_done(code):
    ended = _ended(f"""
        import atexit, sys, threading
        from gazette_platform.cli.start import leave

        atexit.register(print, "registered")
        begun = threading.Event()
        threading.Thread(target=lambda: (begun.wait(), print("thread"))).start()
        threading.Timer(0.1, begun.set).start()
        print("x" * 100_000)
        print("said", file=sys.stderr)
        leave({code})
    """)
    assert ended.returncode == code
    assert ended.stdout.split() == ["x" * 100_000, "thread", "registered"]
    assert ended.stderr == "said\n"


def test_the_interpreter_is_not_taken_down(code):
    """Or a native thread that asks for it then ends the process with SIGABRT."""
    ended = _ended(f"""
        import os, sys
        from gazette_platform.cli.start import leave

        class Last:
            def __del__(self):
                os.write(2, b"taken down")

        sys.modules["last"] = Last()
        leave({code})
    """)
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_reader_that_went_away_changes_no_code(code):
    ended = _ended(f"""
        import os, sys
        from gazette_platform.cli.start import leave

        readable, writable = os.pipe()
        os.close(readable)
        sys.stdout = open(writable, "w")
        sys.stdout.write("never read")
        leave({code})
    """)
    assert (ended.returncode, ended.stderr) == (code, "")
