"""In which order a log is taken over, and when that begins again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gazette_platform.consumer.recoverylog.player import take_over
from gazette_platform.consumer.recoverylog.recording import author_registers, still_of
from gazette_platform.errors import OutcomeUnknown, RegisterMismatch, ShardStopped
from gazette_platform.protocol import LabelSet

LOG, OP = "recovery/one", b"no-op"
FORMER = author_registers(7)


class Client:
    """Notes appends; those of an operation fail as it is told."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.registers = FORMER
        self.done = []

    async def append(self, log, content, **options):
        assert log == LOG
        if not content:
            self.done.append("ask")
            return SimpleNamespace(registers=self.registers, end=90)
        assert content == OP
        self.done.append(("append", options["check_registers"], options["union_registers"]))
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(end=100)

    async def confirm(self):
        self.done.append("confirm")


ATTEMPT = ["ask", "confirm", ("append", still_of(FORMER), author_registers(8))]


@pytest.mark.parametrize(
    "errors",
    [
        (),
        (RegisterMismatch("another one was first"),),
        # It may have been applied, and then the registers are ours.
        (OutcomeUnknown("an answer was lost"),),
        (OutcomeUnknown("an answer was lost"), RegisterMismatch("another one was first")),
    ],
)
async def test_each_attempt_asks_and_is_confirmed_before_it_appends(errors):
    client = Client(*errors)
    assert await take_over(client, LOG, OP, 8, confirm=client.confirm) == 100
    assert client.done == (1 + len(errors)) * ATTEMPT


async def test_who_is_not_confirmed_appends_nothing():
    async def refused():
        raise ShardStopped("shard-000")

    client = Client()
    with pytest.raises(ShardStopped):
        await take_over(client, LOG, OP, 8, confirm=refused)
    assert client.done == ["ask"]


async def test_the_first_author_of_a_log_is_none_if_there_is_one_by_then():
    client = Client()
    client.registers = LabelSet()
    await take_over(client, LOG, OP, 8)
    assert client.done == ["ask", ("append", still_of(LabelSet()), author_registers(8))]
