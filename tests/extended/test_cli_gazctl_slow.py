"""Commands of gazctl that wait: for slow input, and for a broker that is away."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform.testing.waiting import block_for

pytestmark = pytest.mark.etcd
SPEC = """
name: {root}/
replication: 1
labels: [{{name: content-type, value: application/x-ndjson}}]
fragment:
  length: 1024
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1s
  path_postfix_template: date={{{{ .Spool.FirstAppendTime.Format "2006-01-02" }}}}
children:
- name: {root}/one
- name: {root}/two
"""


@pytest.fixture
def root():
    """Journals of this test's own are below this name."""
    return "cli"


@pytest.fixture
def start(broker, tmp_path):
    """Start a gazctl process; all are ended and their pipes closed."""
    processes = []

    def run(*args):
        command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", *map(str, args)]
        process = subprocess.Popen(
            [*command, "--broker.address", broker.address],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watchdog = threading.Timer(40, process.kill)
        watchdog.start()
        processes.append((process, watchdog))
        return process

    yield run
    for process, watchdog in processes:
        watchdog.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


@pytest.fixture
def gazctl(broker, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl journals` to its end, in this process."""
    return gazctl_runner(broker.address, monkeypatch, tmp_path, capfdbinary)


@pytest.fixture
def journals(gazctl, root):
    """Two journals, applied."""
    result = gazctl("apply", stdin=SPEC.format(root=root).encode())
    assert result.code == 0, result.err
    assert "2 created (revision " in result.err
    return f"name:prefix={root}/"


def append(gazctl, selector, content, *flags):
    """Append by way of a file, since stdin is this process's own."""
    Path("content").write_bytes(content)
    result = gazctl("append", "-l", selector, "-i", "content", *flags)
    assert result.code == 0, result.err
    return result.err


def test_slow_stdin_is_still_one_append(start, gazctl, journals, root):
    process = start("append", "-l", f"name={root}/one")
    process.stdin.write(b"slow ")
    process.stdin.flush()
    block_for(3)  # slower than the minimum rate of brokers, once their credit is spent
    _, err = process.communicate(b"input")
    assert err.decode().splitlines()[0] == f"appended 10 bytes to {root}/one at offset 0"
    assert gazctl("read", "-l", f"name={root}/one").out == b"slow input"


def test_unreachable_broker_is_named_within_five_seconds(gazctl):
    begin = time.monotonic()
    result = gazctl("list", "--broker.address", "http://127.0.0.1:1")
    assert result.code == 1
    assert time.monotonic() - begin < 5.0
