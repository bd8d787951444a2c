"""README.md's quick start, pasted as it is into a bare shell of a fresh clone, on a terminal.

Caches of this machine are used, so that the times are those of a second clone. Each command's seconds are printed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pytest
from readable import is_readable
from readme_text import ROOT, missing_lines, section
from uv import find_uv_bin

from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(patient(600))]

COMMANDS_TO_FIRST_ANSWER = 5
TO_FIRST_ANSWER_S = 20.0
# What a shell needs to reach an index of packages, and to find what was downloaded before.
KEPT = re.compile(r"(?i)(https?|no|all)_proxy|UV_.*|PIP_.*|SSL_.*|REQUESTS_CA_BUNDLE|PYTHON")
# Before each prompt the shell says how the last command ended, and when.
PROMPT = 'code=$?; echo; echo "@@$code@$EPOCHREALTIME@@"'
MARK = re.compile(r"^@@(\d+)@([\d.]+)@@$", re.MULTILINE)


class Terminal:
    """A shell of a new user on a terminal, and what it shows."""

    def __init__(self, folder: Path, home: Path) -> None:
        uv_cache = subprocess.run(
            [find_uv_bin(), "cache", "dir"], capture_output=True, text=True, check=True
        )
        environment = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        environment |= {
            "HOME": str(home),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PROMPT_COMMAND": PROMPT,
            "GAZETTE_CACHE": str(tools.cache_dir()),
            "UV_CACHE_DIR": uv_cache.stdout.strip(),
        }
        self._fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._raw = b""

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self._fd)

    def paste(self, text: str) -> None:
        """Write all of a text at once."""
        os.write(self._fd, text.encode())

    @property
    def shown(self) -> str:
        """What the terminal shows so far, without control sequences and what was written over."""
        text = self._raw.decode("utf-8", "replace").replace("\r\n", "\n")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-B0-2]", "", text)
        return re.sub(r"[^\n]*\r", "", text)

    def ended(self, count: int, timeout_s: float) -> list[tuple[int, float]]:
        """Wait for that many prompts. Return the exit code and the time of each."""
        deadline = time.monotonic() + timeout_s
        while len(found := MARK.findall(self.shown)) < count:
            assert time.monotonic() < deadline, self.shown[-3000:]
            if is_readable(self._fd, 0.5):
                self._raw += os.read(self._fd, 1 << 16)
        return [(int(code), float(at)) for code, at in found]


@pytest.fixture
def terminal(tmp_path):
    """A shell in a clone of what is committed."""
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    with Terminal(clone, home) as found:
        yield found
        found.paste(".venv/bin/gazette down\n")
        count = len(MARK.findall(found.shown)) + 1
        found.ended(count, patient(60))


def test_quick_start_runs_as_pasted(terminal, tmp_path):
    text = section((tmp_path / "clone/README.md").read_text(), "Quick start")
    block, expected = (
        re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0]
        for language in ("bash", "text")
    )
    commands = [line for line in block.splitlines() if line]
    began = terminal.ended(1, patient(30))[-1][1]
    terminal.paste(block)
    # An empty line shows a prompt, too.
    ends = terminal.ended(1 + len(block.splitlines()), patient(500))[1:]
    at = dict(zip(block.splitlines(), ends, strict=True))
    print(terminal.shown)
    for command in commands:
        code, ended = at[command]
        print(f"{ended - began:6.1f} s  {command}")
        assert code == 0, command
        began = ended
    assert missing_lines(expected, terminal.shown) == []
    first_answer = next(n for n, line in enumerate(commands, 1) if line.startswith("gazctl sql"))
    assert first_answer == COMMANDS_TO_FIRST_ANSWER
    start = MARK.findall(terminal.shown)[0][1]
    spent = at[commands[first_answer - 1]][1] - float(start)
    print(f"{spent:6.1f} s  to the first answer")
    assert spent < patient(TO_FIRST_ANSWER_S)
