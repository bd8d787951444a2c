"""What a supervisor makes of several processes: one page of metrics, one log."""

from __future__ import annotations

import json
import os

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gazette_platform.errors import SetupError
from gazette_platform.serving.process import SupervisorLine
from gazette_platform.serving.supervisor import Totals, named_line


class Process:
    """One run of a process with a metric of each kind."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.appends = Counter("appends", "Appends.", ("journal",), registry=self.registry)
        self.calls = Counter("calls", "Calls.", registry=self.registry)
        self.head = Gauge("write_head", "Head.", ("journal",), registry=self.registry)
        self.active = Gauge("active", "Active.", registry=self.registry)
        buckets = (0.1, 1.0)
        self.seconds = Histogram("seconds", "Took.", registry=self.registry, buckets=buckets)
        self.sizes = Summary("sizes", "Bytes.", registry=self.registry)

    @property
    def page(self):
        return generate_latest(self.registry)


def samples(page):
    """By name and labels; without the times of creation, which are gauges."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name, *sorted(sample.labels.items())] = sample.value
    return found


def test_counts_add_up_and_gauges_are_labelled():
    a, b = Process(), Process()
    for process, times in ((a, 2), (b, 3)):
        process.calls.inc(times)
        process.appends.labels("x/y").inc(times)
        process.active.set(times)
        process.head.labels('q"{} ').set(times)
        process.sizes.observe(10 * times)
        for _ in range(times):
            process.seconds.observe(0.5)
    b.appends.labels("only/b").inc()
    found = samples(Totals().page({"p-0": a.page, "p-1": b.page}))
    assert found["calls_total",] == 5
    assert found["appends_total", ("journal", "x/y")] == 5
    assert found["appends_total", ("journal", "only/b")] == 1
    assert found["active", ("process", "p-0")] == 2
    assert found["active", ("process", "p-1")] == 3
    assert found["write_head", ("journal", 'q"{} '), ("process", "p-1")] == 3
    assert [found["seconds_bucket", ("le", le)] for le in ("0.1", "1.0", "+Inf")] == [0, 5, 5]
    assert (found["seconds_count",], found["seconds_sum",]) == (5, 2.5)
    assert (found["sizes_count",], found["sizes_sum",]) == (2, 50)


def test_each_metric_is_described_once():
    page = Totals().page({"p-0": Process().page, "p-1": Process().page}).decode()
    heads = [line for line in page.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))
    assert "# HELP calls_total Calls." in heads
    assert "# TYPE seconds histogram" in heads


def test_sums_do_not_fall_when_a_process_starts_again():
    totals, a, b = Totals(), Process(), Process()
    a.calls.inc(5)
    b.calls.inc(7)
    assert samples(totals.page({"a": a.page, "b": b.page}))["calls_total",] == 12
    totals.ended("a")
    assert samples(totals.page({"b": b.page}))["calls_total",] == 12
    again = Process()
    again.calls.inc()
    for _ in range(2):  # asking changes nothing
        assert samples(totals.page({"a": again.page, "b": b.page}))["calls_total",] == 13
    totals.ended("a")
    totals.ended("a")
    assert samples(totals.page({"b": b.page}))["calls_total",] == 13


def test_a_process_that_does_not_answer_keeps_its_counts_and_loses_its_gauges():
    totals, a, b = Totals(), Process(), Process()
    a.calls.inc(5)
    a.active.set(1)
    totals.page({"a": a.page, "b": b.page})
    found = samples(totals.page({"b": b.page}))
    assert found["calls_total",] == 5
    assert ("active", ("process", "a")) not in found


@pytest.mark.parametrize("line", [b"half", b"whole\n", b"windows\r\n", b"\xff\n", b"\n", b"{\n"])
@pytest.mark.parametrize("is_json", [True, False])
def test_each_line_is_one_line_with_a_name(line, is_json):
    found = named_line(line, "host-1", is_json=is_json)
    assert found.count("\n") == 1
    assert found.endswith("\n")
    if is_json:
        assert json.loads(found)["process"] == "host-1"
    else:
        assert found.startswith("host-1: ")


def test_fields_of_json_lines_are_kept():
    entry = {"time": "now", "level": "info", "msg": 'a "quoted" word'}
    found = json.loads(named_line(json.dumps(entry).encode(), "host-1", is_json=True))
    assert found == {"process": "host-1", **entry}


def test_a_member_without_supervisor_says_what_to_start():
    former = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(empty, 0)
        with pytest.raises(SetupError, match=r"start members by `gazette serve"):
            SupervisorLine.on_stdin()
    finally:
        os.dup2(former, 0)
        os.close(former)
        os.close(empty)
