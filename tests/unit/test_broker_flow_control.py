"""Rates of appends: Gazette's cases FC1 to FC6, in terms of our credit and balance.

FC7, which is about receiving, is in test_broker_append_api.py.
"""

from __future__ import annotations

import pytest

from gazette_platform.broker.append.content import Flow, RateBalance

MIN = 1000
MAX = 10_000


# ------------------------------------------------------------------------------- the client's pace
def test_fc1_a_client_has_a_second_of_credit():
    flow = Flow.start(MIN, 0.0)
    assert not flow.underflows(0.999)
    assert flow.underflows(1.001)


def test_fc1_content_pays_for_the_time_to_come():
    flow = Flow.start(MIN, 0.0)
    assert not flow.underflows(1.0)
    flow.on_content(40)
    assert not flow.underflows(1.039)
    assert flow.underflows(1.051)


def test_fc1_a_second_of_credit_is_all_that_is_banked():
    flow = Flow.start(MIN, 0.0)
    flow.on_content(1 << 30)
    assert not flow.underflows(0.999)
    assert flow.underflows(1.001)


@pytest.mark.parametrize("chunk", [1, 50, 500])
def test_a_client_at_the_minimum_rate_is_never_too_slow(chunk):
    flow, now = Flow.start(MIN, 0.0), 0.0
    for _ in range(1000):
        now += chunk / MIN
        flow.on_content(chunk)
        assert not flow.underflows(now)


@pytest.mark.parametrize("chunk", [1, 50, 500])
def test_a_client_below_the_minimum_rate_is_found_out(chunk):
    flow, now = Flow.start(MIN, 0.0), 0.0
    for _ in range(100_000):
        now += chunk / (MIN * 0.9)
        if flow.underflows(now):
            break
        flow.on_content(chunk)
    assert 4 < now < 11, "a tenth too slow: a second of credit lasts ten at most"


def test_time_that_we_hold_the_client_back_is_not_charged():
    flow = Flow.start(MIN, 0.0)
    assert not flow.underflows(0.5)
    flow.on_held(60.0)
    assert not flow.underflows(60.499)
    assert flow.underflows(60.501)


def test_minimum_of_zero_judges_no_stream():
    assert not Flow.start(0, 0.0).underflows(1e9)


# ------------------------------------------------------------------------------ the journal's pace
def test_fc1_a_balance_begins_with_a_second_of_the_rate():
    balance = RateBalance.start(MAX, 5.0)
    assert balance.take(MAX, 5.0) == 0
    assert balance.take(1, 5.0) == pytest.approx(1 / MAX)


def test_fc1_a_charge_is_paid_before_anything_is_banked():
    balance = RateBalance.start(MAX, 0.0)
    assert balance.take(3 * MAX, 0.0) == pytest.approx(2.0)
    balance.refill(3.0)
    assert balance.balance == pytest.approx(MAX)


def test_fc1_at_most_ten_seconds_are_banked():
    balance = RateBalance.start(MAX, 0.0)
    balance.refill(3600.0)
    assert balance.balance == 10 * MAX


def test_fc2_a_chunk_of_eleven_seconds_passes_after_ten():
    balance = RateBalance.start(MIN, 0.0)
    flow = Flow.start(MIN, 0.0)
    flow.on_content(11 * MIN)
    delay_s = balance.take(11 * MIN, 0.0)
    assert delay_s == pytest.approx(10.0)
    flow.on_held(delay_s)
    assert not flow.underflows(delay_s + 0.05)


def test_fc3_what_is_left_carries_over_to_the_next_append():
    balance = RateBalance.start(MAX, 0.0)
    assert balance.take(9000, 0.0) == 0
    balance.refill(0.15)
    assert balance.balance == pytest.approx(2500)


def test_fc5_a_rate_of_zero_never_delays():
    balance = RateBalance.start(0, 0.0)
    assert balance.take(1 << 40, 0.0) == 0


def test_a_rate_that_is_set_later_begins_without_a_debt():
    """As when a spec changes while content was unlimited."""
    balance = RateBalance.start(0, 0.0)
    balance.take(1 << 40, 100.0)
    balance.rate = MAX
    assert balance.take(100, 101.0) <= 100 / MAX


def test_long_run_throughput_is_the_rate():
    balance, now = RateBalance.start(MAX, 0.0), 0.0
    for _ in range(1000):
        now += balance.take(777, now)
    assert 777 * 1000 / (now + 1) == pytest.approx(MAX, rel=0.01)
