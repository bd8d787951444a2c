"""Commands of gazctl that wait: for slow input, and for a broker that is away."""

import time

import pytest
from gazctl_runner import SMALL_FRAGMENTS, gazctl_runner, started_gazctl

from gazette_platform.testing.waiting import block_for

pytestmark = pytest.mark.etcd


@pytest.fixture
def root():
    """Journals of this test's own are below this name."""
    return "cli"


@pytest.fixture
def start(broker, tmp_path):
    """Start a gazctl process; all are ended and their pipes closed."""
    with started_gazctl(broker.address, tmp_path) as run:
        yield run


@pytest.fixture
def gazctl(broker, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl journals` to its end, in this process."""
    return gazctl_runner(broker.address, monkeypatch, tmp_path, capfdbinary)


@pytest.fixture
def journals(gazctl, root):
    """Two journals, applied."""
    result = gazctl("apply", stdin=SMALL_FRAGMENTS.format(root=root).encode())
    assert result.code == 0, result.err
    assert "2 created (revision " in result.err
    return f"name:prefix={root}/"


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
