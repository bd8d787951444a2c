"""A fake broker in a thread of its own, and gazctl, which asks it."""

import io
import sys
import types

import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.client.loop_thread import LoopThread
from gazette_platform.testing.fake_broker import FakeBroker


@pytest.fixture
def broker():
    """A fake broker; its `run` awaits in its loop."""
    loop = LoopThread("fake-broker")

    async def start():
        return await FakeBroker().__aenter__()

    broker = loop.run(start())
    broker.run = loop.run
    yield broker
    loop.run(broker.__aexit__())
    loop.close()


@pytest.fixture
def gazctl(broker, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl journals` in an empty folder."""
    monkeypatch.setenv("BROKER_ADDRESS", broker.address)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(stdin)))
        code = main(["journals", *map(str, args)])
        out, err = capfdbinary.readouterr()
        return types.SimpleNamespace(code=code, out=out, err=err.decode())

    return run
