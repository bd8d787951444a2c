"""The append state machine at a broker that is not the journal's primary: where an append goes."""

from __future__ import annotations

import dataclasses

import pytest

from gazette_platform.broker.append.events import (
    AppendRequest,
    CountReplicas,
    Fail,
    Forward,
    Replicas,
    Resolve,
    Resolved,
    Sync,
    WriteSuspend,
    Written,
)
from gazette_platform.broker.append.fsm import AppendFSM, State
from gazette_platform.protocol import (
    AppendSuspend,
    FragmentSpec,
    JournalSpec,
    Status,
    SuspendLevel,
    SuspendSpec,
)

SPEC = JournalSpec("a/journal", 1, fragment=FragmentSpec(length=1024))
REQUEST = AppendRequest("a/journal")
ELSEWHERE = Resolved(Status.OK, is_local_primary=False, spec=SPEC, revision=100)


def asked_elsewhere(request=REQUEST):
    machine = AppendFSM(request, forwards=True)
    assert machine.start() == Resolve(request.min_revision)
    return machine


def test_it_is_forwarded_once_the_journal_has_as_many_replicas_as_it_should():
    machine = asked_elsewhere()
    assert machine.step(ELSEWHERE) == CountReplicas()
    assert machine.step(Replicas(1, 1, 100, may_wait=True)) == Forward()
    assert machine.state is State.DONE


@pytest.mark.parametrize(
    ("current", "may_wait", "effect"),
    [
        (1, True, Resolve(101)),
        (3, True, Resolve(101)),
        (1, False, Fail(Status.INSUFFICIENT_JOURNAL_BROKERS)),
        # Its primary is asked: there may be a reason why the allocator does not get on.
        (3, False, Forward()),
    ],
)
def test_a_number_of_replicas_that_will_change_is_waited_for(current, may_wait, effect):
    machine = asked_elsewhere()
    machine.step(ELSEWHERE)
    assert machine.step(Replicas(current, 2, 100, may_wait)) == effect


def test_a_journal_that_comes_back_to_us_is_served_here():
    machine = asked_elsewhere()
    machine.step(ELSEWHERE)
    machine.step(Replicas(1, 2, 100, may_wait=True))
    assert machine.step(Resolved(Status.OK, is_local_primary=True, spec=SPEC)) == Sync()


@pytest.mark.parametrize(
    "status", [Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS]
)
def test_a_status_that_passes_by_itself_is_waited_for(status):
    machine = asked_elsewhere()
    passing = Resolved(status, is_local_primary=False, spec=SPEC, revision=7, may_wait=True)
    assert machine.step(passing) == Resolve(8)
    assert machine.step(dataclasses.replace(passing, may_wait=False)) == Fail(status)


@pytest.mark.parametrize("status", [Status.JOURNAL_NOT_FOUND, Status.SUSPENDED])
def test_a_status_that_stays_is_reported_at_once(status):
    found = Resolved(status, is_local_primary=False, spec=SPEC, revision=7, may_wait=True)
    machine = asked_elsewhere(dataclasses.replace(REQUEST, suspend=AppendSuspend.SUSPEND_NO_RESUME))
    assert machine.step(found) == Fail(status)


def test_any_broker_resumes_a_journal_without_a_primary():
    machine = asked_elsewhere()
    full = dataclasses.replace(SPEC, suspend=SuspendSpec(SuspendLevel.FULL, 42))
    found = Resolved(Status.SUSPENDED, is_local_primary=False, spec=full, revision=7)
    assert machine.step(found) == WriteSuspend(SuspendSpec(SuspendLevel.NONE, 42))
    assert machine.step(Written(9)) == Resolve(9)
    assert machine.step(ELSEWHERE) == CountReplicas()
