"""Orders on their way to Spark's workers and back, without a Spark."""

import pickle

import pytest
from pyspark import cloudpickle

from gazette_platform.client.read.extents import Extent
from gazette_platform.lake.typed.planning.ranges import Task
from gazette_platform.lake.typed.planning.rounds import Order
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.spark import typed_workers, typed_workers as typed_orders
from gazette_platform.spark.typed_workers import NAME, PlannedOrders, source_of

ORDERS = [b"the first order", b"the second order"]


def planned(job=b"the job", orders=ORDERS):
    """What the planner gets, by the ways of Spark."""
    registered = cloudpickle.loads(cloudpickle.dumps(source_of(job, orders)))
    assert registered.name() == NAME
    source = registered(options={})
    assert source.schema() == "number int, is_error boolean, content binary"
    found = pickle.loads(cloudpickle.dumps(source))
    assert isinstance(found, PlannedOrders)
    return found


def test_the_planner_makes_a_partition_of_each_order():
    found = [(one.number, one.order) for one in planned().reader(None).partitions()]
    assert found == [(0, ORDERS[0]), (1, ORDERS[1])]


def test_tasks_are_sent_the_job_and_no_orders():
    source = planned()
    reader = source.reader(None)
    sent = cloudpickle.dumps((source, reader))
    assert b"the job" in sent
    assert not any(order in sent for order in ORDERS)
    assert len(reader.partitions()) == 2


def test_worker_reports_its_error_in_rows_of_bounded_size(monkeypatch):
    monkeypatch.setattr(typed_orders, "_PART_BYTES", 16)
    order = Order(journal="j", task=Task((Extent("j", 0, 9),)))
    reader = planned(b"0.0.0-other\n", [b"", jobs.dump_order(order)]).reader(None)
    rows = [row for batch in reader.read(reader.partitions()[1]) for row in batch.to_pylist()]
    assert len(rows) > 3
    assert {(row["number"], row["is_error"]) for row in rows} == {(1, True)}
    told = jobs.parse_error(b"".join(row["content"] for row in rows))
    assert "the driver is gazette-platform 0.0.0-other, and this worker" in str(told)


def test_orders_travel_in_groups_of_bounded_size(monkeypatch):
    monkeypatch.setattr(typed_workers, "_ORDERS_BYTES_MAX", 10)
    orders = [b"1234", b"5678", b"9", b"a" * 30, b"b", b"c"]
    groups = list(typed_workers._groups(orders))
    assert groups == [[b"1234", b"5678", b"9"], [b"a" * 30], [b"b", b"c"]]
    assert list(typed_workers._groups([])) == []


TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/a/typed_orders.py", line 13, in _carried_out
    raise OSError(28, "No space left on device")
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/typed_orders.py", line 14, in _carried_out
    close()
    ^^^^^^^
ValueError: it is closed
already

JVM stacktrace:
org.apache.spark.SparkException
\tat org.apache.spark.api.python.PythonRunner
"""
KILLED = """An error occurred while calling o52.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times, most recent failure: Lost task 3.0 in stage 0.0 (TID 3) (h executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled'
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TRACE, "ValueError: it is closed"),
        (KILLED, "its workers ended before they were done, each time that it tried again"),
        ("x: ExecutorLostFailure (executor 1 exited)", "its workers ended before they were done"),
        (
            TRACE.replace("ValueError: it is closed", "No module named 'gazette_platform.x'"),
            "its Python workers have no gazette_platform.x: install this release",
        ),
        ("[PYTHON_VERSION_MISMATCH] no\n\tat x", "[PYTHON_VERSION_MISMATCH] no"),
    ],
)
def test_failures_of_spark_are_reported_in_a_line(text, told):
    found = typed_workers._why(Exception(text))
    assert found.startswith(told)
    assert "\n" not in found
