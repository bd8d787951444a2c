import threading

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import LoopThread


@pytest.fixture
def loop():
    loop = LoopThread("test-loop")
    yield loop
    loop.close()


async def value():
    return threading.current_thread().name


def test_runs_coroutines_on_its_thread(loop):
    assert loop.run(value()) == "test-loop"


def test_errors_come_back_to_the_caller(loop):
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        loop.run(fail())


def test_closed_loop_refuses(loop):
    loop.close()
    loop.close()
    with pytest.raises(ValidationError, match="client is closed"):
        loop.run(value())
    loop.post(pytest.fail, "nothing runs after close")


def test_loop_does_not_wait_for_itself(loop):
    async def nested():
        loop.run(value())

    with pytest.raises(ValidationError, match="cannot wait for its own event loop"):
        loop.run(nested())
