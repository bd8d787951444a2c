"""What is tallied is in the metrics whenever they are read."""

from __future__ import annotations

import pytest

from gazette_platform.broker.context import BrokerMetrics


@pytest.fixture
def metrics():
    return BrokerMetrics()


def test_tallies_are_exact_each_time_they_are_read(metrics):
    def commits():
        return metrics.registry.get_sample_value("gazette_spool_commits_total")

    assert commits() == 0
    metrics.spool_commits.count += 16
    assert [commits(), commits()] == [16, 16]
    metrics.spool_commits.count += 1
    assert "gazette_spool_commits_total 17.0" in metrics.exposition().decode()
    assert commits() == 17


def test_calls_are_counted_by_their_code(metrics):
    call = metrics.calls.of("unary", "protocol.Journal", "Apply")
    for code in ("OK", "OK", "Internal"):
        call.end(call.begin(), code)
    call.received.count += 2
    call.sent.count += 1

    def value(name, **labels):
        of = {
            "grpc_type": "unary",
            "grpc_service": "protocol.Journal",
            "grpc_method": "Apply",
            **labels,
        }
        return metrics.registry.get_sample_value(f"grpc_server_{name}", of)

    assert value("started_total") == value("handling_seconds_count") == 3
    assert value("handled_total", grpc_code="OK") == 2
    assert value("handled_total", grpc_code="Internal") == 1
    assert (value("msg_received_total"), value("msg_sent_total")) == (2, 1)
