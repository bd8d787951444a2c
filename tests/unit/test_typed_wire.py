"""What a driver and its workers send each other, there and back as bytes."""

import pyarrow as pa
import pytest

from gazette_platform import errors
from gazette_platform.client import ClientConfig, FragmentListing
from gazette_platform.client.read.extents import Extent
from gazette_platform.errors import LakeError, OffsetJump, ValidationError
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.typed.planning.ranges import Task
from gazette_platform.lake.typed.planning.rounds import Done, Kind, Order
from gazette_platform.lake.typed.planning.screening import Clocks, TaskSummary
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.jobs import Job, Output
from gazette_platform.lake.typed.tables.writing import WrittenFile
from gazette_platform.protocol import Fragment

TASK = Task((Extent("j", 0, 100),), is_soft=True)
FILE = WrittenFile(
    path="file:///t/a.parquet",
    bytes=10,
    rows=2,
    spec_id=0,
    partition=(None, 3, b"x"),
    column_sizes={1: 5},
    value_counts={1: 2},
    null_value_counts={1: 0},
    nan_value_counts={},
    lower_bounds={1: b"a"},
    upper_bounds={1: b"b"},
    split_offsets=[4],
)


def messages(count):
    return pa.table(
        {
            "begin": pa.array(range(0, 350 * count, 350), pa.int64()),
            "end": pa.array(range(350, 350 * count + 350, 350), pa.int64()),
            "producer": pa.array([b"abcdef"] * count, pa.binary(6)),
            "clock": pa.array(range((1 << 64) - count, 1 << 64), pa.uint64()),
            "flags": pa.array([1] * count, pa.uint16()),
        }
    )


def job(**client):
    return Job(
        spec=TypedSpec(name="t.a", source="r.a", uuid=(), columns=()),
        schema="{}",
        partitions="{}",
        location="file:///t",
        quarantine_schema="{}",
        quarantine_location="file:///q",
        io_properties={"s3.secret-access-key": "hidden"},
        client=ClientConfig(**client),
    )


def test_a_job_arrives_as_it_was(tmp_path):
    sent = job(address="http://b:1", auth_token="hidden", file_root=tmp_path)
    assert jobs.parse_job(jobs.dump_job(sent)) == sent
    assert "hidden" not in repr(sent)


def test_a_job_of_another_release_is_refused_before_it_is_looked_at(monkeypatch):
    monkeypatch.setattr(jobs, "_release", lambda: "9.9.9")
    sent = jobs.dump_job(job())
    monkeypatch.undo()
    with pytest.raises(LakeError, match=r"the driver is gazette-platform 9\.9\.9, and this worker"):
        jobs.parse_job(sent.partition(b"\n")[0] + b"\nno pickle")


def test_an_order_arrives_as_it_was():
    fragment = Fragment(journal="j", begin=0, end=100, backing_store="s3://b/")
    listed = FragmentListing(fragment, "https://signed?token=x")
    task = Task((Extent("j", 0, 100, listed),))
    sent = Order(journal="j", task=task, known={b"abcdef": 7})
    assert jobs.parse_order(jobs.dump_order(sent)) == sent


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_an_order_keeps_the_offsets_that_it_names_and_no_others_of_their_array(count):
    offsets = pa.array(range(0, 20_000 * 300, 300), pa.int64())
    sent = Order(journal="j", task=TASK, kind=Kind.KEEP, keep=offsets.slice(7000, count))
    content = jobs.dump_order(sent)
    found = jobs.parse_order(content)
    assert (found.kind, found.task) == (Kind.KEEP, TASK)
    assert isinstance(found.keep, pa.Int64Array)
    assert found.keep.equals(sent.keep)
    assert len(content) < 2000 + count


@pytest.mark.parametrize(
    "sent",
    [
        Done(),
        Done(typed=3, quarantined=1, output=Output(files=(FILE,), quarantined=(FILE, FILE))),
        Done(output=Output()),
        Done(summary=TaskSummary(begin=0, end=9, clocks={b"abcdef": Clocks(1, (1 << 64) - 1)})),
        Done(end=7, messages=messages(0)),
        Done(end=7, messages=messages(300)),
    ],
)
def test_what_came_of_an_order_arrives_as_it_was(sent):
    assert jobs.parse_done(jobs.dump_done(sent)) == sent


def test_messages_take_few_bytes():
    assert len(jobs.dump_done(Done(messages=messages(100_000)))) < 100_000 * 4


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x91\xc0", jobs.dump_done(Done())[:-1]])
def test_what_no_worker_of_this_release_says_is_reported(content):
    with pytest.raises(LakeError, match="it is of another release, or damaged; run again"):
        jobs.parse_done(content)
    damaged = jobs.dump_done(Done(messages=messages(9))).replace(b"PAR1", b"XXXX")
    with pytest.raises(LakeError, match="another release"):
        jobs.parse_done(damaged)


KINDS = [
    getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_arrives_with_its_class_and_text(kind):
    error = kind.__new__(kind, "why: and what next")
    found = jobs.parse_error(jobs.dump_error(error))
    assert type(found) is kind
    assert str(found) == "why: and what next"


def test_errors_keep_their_fields():
    jump = jobs.parse_error(jobs.dump_error(OffsetJump("j", 3, 9)))
    assert (jump.journal, jump.from_offset, jump.to_offset) == ("j", 3, 9)
    assert str(jump) == str(OffsetJump("j", 3, 9))
    told = jobs.parse_error(jobs.dump_error(ValidationError("bad", path="a.b")))
    assert (str(told), told.path) == ("a.b: bad", "a.b")
    status = errors.JournalNotFound("gone", journal="j")
    assert str(jobs.parse_error(jobs.dump_error(status))) == str(status)
    unknown = errors.OutcomeUnknown("refused")
    unknown.may_be_applied = False
    assert jobs.parse_error(jobs.dump_error(unknown)).may_be_applied is False


class Closer(errors.StoreUnavailable):
    """Of this test alone."""


def test_an_error_of_another_class_becomes_the_nearest_that_is_known():
    found = jobs.parse_error(jobs.dump_error(Closer("away")))
    assert type(found) is errors.StoreUnavailable
    assert str(found) == "away"
    assert type(jobs.parse_error(b"\xc1")) is LakeError


def test_an_error_of_a_newer_release_is_a_plain_one():
    sent = jobs.dump_error(LakeError("why")).replace(b"LakeError", b"NewerKind")
    found = jobs.parse_error(sent)
    assert type(found) is LakeError
    assert str(found) == "why"
    for other in (b"ClassVar\0", b"OffsetJum"):
        assert type(jobs.parse_error(sent.replace(b"NewerKind", other))) is LakeError


def test_that_content_could_not_be_read_is_reported():
    done = Done(failure="j: no line ends")
    assert jobs.parse_done(jobs.dump_done(done)) == done
