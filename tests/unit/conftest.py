"""A fake broker in a thread of its own, and gazctl, which asks it."""

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform.ops.tasks import LoopThread
from tests.benches.fake_broker import FakeBroker


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
    return gazctl_runner(broker.address, monkeypatch, tmp_path, capfdbinary)
