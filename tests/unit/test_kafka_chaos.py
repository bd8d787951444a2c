"""The checks of a Kafka chaos run: a sound history passes, and each planted fault is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.plan import ALL_KINDS, FaultKind, make_plan
from tests.kafka_chaos.check import PRODUCER, SESSION, TRANSACTIONAL, Evidence, findings
from tests.kafka_chaos.verifiable import lines_of, number_of

FIRST = SESSION  # of the first run of the first producer
OPEN = TRANSACTIONAL + SESSION


def line(what, **more):
    return {"what": what, **more}


def record(at, number, offset):
    return line("record", at=at, value={"n": number}, partition=0, offset=offset)


def sound():
    """One partition: two records of an idempotent producer, and two of a transaction that was committed."""
    numbers = {0: [FIRST, OPEN, FIRST + 1, OPEN + 1]}
    return Evidence(
        idempotent={
            "idempotent-0": [
                line("started"),
                line("sent", n=FIRST, partition=0),
                line("sent", n=FIRST + 1, partition=0),
                line("acked", n=FIRST),
                line("acked", n=FIRST + 1),
            ]
        },
        transactional={
            "transactional-0": [
                line("started"),
                line("begun", records=[[OPEN, 0], [OPEN + 1, 0]]),
                line("committed", records=2),
                line("begun", records=[[OPEN + 2, 0]]),
                line("aborted", records=1),
            ]
        },
        members={
            "member-0": [
                line("assigned", at=1.0, partitions=[0]),
                record(2.0, FIRST, 9),
                line("committed", at=3.0, partition=0, offset=10),
                record(4.0, OPEN, 19),
            ],
            "member-1": [
                line("assigned", at=5.0, partitions=[0]),
                record(6.0, OPEN, 19),
                record(7.0, FIRST + 1, 29),
                record(8.0, OPEN + 1, 39),
                line("committed", at=9.0, partition=0, offset=40),
            ],
        },
        offsets={"watchers": [{0: 10}, {0: 10}, {0: 40}]},
        source=numbers,
        source_of_client=numbers,
        targets={"target": numbers},
        targets_of_client={"target": numbers},
    )


def with_source(*numbers):
    """All readers and the transform agree on what the source has."""
    same = {0: list(numbers)}
    evidence = sound()
    return replace(
        evidence,
        source=same,
        source_of_client=same,
        targets={"target": same},
        targets_of_client={"target": same},
    )


def changed(field, name, *lines):
    evidence = sound()
    logs = dict(getattr(evidence, field))
    logs[name] = [*logs.get(name, []), *lines]
    return replace(evidence, **{field: logs})


def test_sound_history_has_no_findings():
    assert findings(sound()) == []


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (with_source(FIRST, OPEN, OPEN + 1), "lost: "),
        (with_source(FIRST, OPEN, FIRST + 1), "lost: "),
        (with_source(FIRST, FIRST, OPEN, FIRST + 1, OPEN + 1), "doubled: "),
        (with_source(FIRST, OPEN, FIRST + 1, OPEN + 1, OPEN + 2), "aborted: "),
        (with_source(FIRST, OPEN, FIRST + 1, OPEN + 1, 7), "strange: "),
        (with_source(FIRST + 1, OPEN, FIRST, OPEN + 1), "order: the consumer"),
        (
            changed("idempotent", "idempotent-0", line("refused", n=1, text="no")),
            "idempotent-0 was",
        ),
        (changed("members", "member-1", record(10.0, OPEN + 1, 39)), "twice: "),
        (
            changed(
                "members",
                "member-2",
                line("assigned", at=9.5, partitions=[0]),
                record(10.0, OPEN + 1, 39),
            ),
            "twice: ",
        ),
        (changed("members", "member-2", record(10.0, OPEN + 1, 39)), "not its own: "),
        (changed("members", "member-1", record(10.0, OPEN + 2, 49)), "uncommitted: "),
        (replace(sound(), members={}), "skipped: "),
        (replace(sound(), offsets={"g": [{0: 40}, {0: 10}]}), "went back: "),
        (replace(sound(), offsets={"g": [{0: 40}, {}]}), "went back: "),
        (replace(sound(), targets={"target": {0: [FIRST, OPEN, FIRST + 1]}}), "lost: target"),
        (
            replace(sound(), targets={"target": {0: [FIRST, OPEN, FIRST + 1, OPEN + 1, OPEN + 1]}}),
            "doubled: target",
        ),
        (
            replace(sound(), targets={"target": {0: [OPEN, FIRST, FIRST + 1, OPEN + 1]}}),
            "order: partition 0 of target",
        ),
        (replace(sound(), source_of_client={0: [FIRST]}), "readers differ: "),
        (replace(sound(), places={0: [(9, FIRST), (20, OPEN)]}), "moved: "),
    ],
)
def test_planted_fault_is_found(evidence, found):
    assert [text for text in findings(evidence) if text.startswith(found)], findings(evidence)


@pytest.mark.parametrize("there", [0, 1, 2])
def test_transaction_of_unknown_end_is_whole_or_absent(there):
    more = [OPEN + 4, OPEN + 5][:there]
    evidence = with_source(FIRST, OPEN, FIRST + 1, OPEN + 1, *more)
    logs = dict(evidence.transactional)
    begun = line("begun", records=[[OPEN + 4, 0], [OPEN + 5, 0]])
    logs["transactional-0"] = [*logs["transactional-0"], begun, line("started")]
    evidence = replace(evidence, transactional=logs)
    torn = [text for text in findings(evidence) if text.startswith("torn: ")]
    assert len(torn) == (there == 1)


def test_order_of_transactions_outlives_a_run():
    """A killed producer's next run is the same producer, but only if it is transactional."""
    later = [OPEN + SESSION, OPEN]
    assert [text for text in findings(with_source(*later)) if text.startswith("order: ")]
    later = [FIRST + SESSION, FIRST]
    assert not [text for text in findings(with_source(*later)) if text.startswith("order: ")]
    assert PRODUCER > SESSION


def test_coordinator_is_killed_in_kafka_runs_alone():
    zones = {"broker-1": "a", "broker-2": "b", "broker-3": "c"}

    def kinds(chosen):
        plan = make_plan(
            41, duration_s=60, zones=zones, lease_s=6, replication=2, journals=["j"], kinds=chosen
        )
        return {fault.kind for fault in plan}

    assert FaultKind.KILL_COORDINATOR not in kinds(ALL_KINDS)
    assert FaultKind.KILL_COORDINATOR in kinds([FaultKind.KILL_COORDINATOR, FaultKind.DRAIN])


def said(name, **more):
    return {"timestamp": 5000, "name": name, **more}


def acked(value, offset):
    return said("producer_send_success", value=value, partition=0, offset=offset)


def with_java(*values, more=()):
    """A topic with these values. Kafka's own producer says that it wrote `2.0` and `2.1` in a batch."""
    producer = [{"name": "begun", "prefix": 2}, acked("2.0", 9), acked("2.1", 10), *more]
    place = {"topic": "verified", "partition": 0}
    consumer = [
        said("partitions_assigned", partitions=[place]),
        *(
            said("record_data", value=value, offset=10 * n + 9, **place)
            for n, value in enumerate(values)
        ),
        said("offsets_committed", success=True, offsets=[{**place, "offset": 10 * len(values)}]),
        said("offsets_committed", success=False, error="no", offsets=[]),
    ]
    numbers = {0: [number_of(value) for value in values]}
    return Evidence(
        idempotent={"producer": [line for each in producer for line in lines_of(each)]},
        transactional={},
        members={"consumer": [line for each in consumer for line in lines_of(each)]},
        source=numbers,
        source_of_client=numbers,
        places={0: [(10 * n + 9, number) for n, number in enumerate(numbers[0])]},
        targets={},
        targets_of_client={},
    )


@pytest.mark.parametrize("last", [(), ("2.2",)])
def test_what_java_says_of_a_sound_history_has_no_findings(last):
    """Its producer says nothing of a value that was not acknowledged: readers get it or do not."""
    assert findings(with_java("2.0", "2.1", *last)) == []
    assert findings(with_java("2.0", "2.1", *last, more=[said("tool_data", sent=3)])) == []


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (with_java("2.0"), "lost: "),
        (with_java("2.0", "2.1", "2.1"), "doubled: "),
        (with_java("2.0", "2.1", "3.0"), "strange: "),
        (with_java("2.0", "2.1", "2.3", more=[said("tool_data", sent=3)]), "strange: "),
        (with_java("2.1", "2.0"), "moved: "),
        (
            with_java(
                *("2.0", "2.1"),
                more=[said("producer_send_error", value="2.2", exception="E", message="no")],
            ),
            "producer was refused",
        ),
    ],
)
def test_fault_that_java_shows_is_found(evidence, found):
    assert [text for text in findings(evidence) if text.startswith(found)], findings(evidence)
