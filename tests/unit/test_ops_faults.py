"""A few lines a minute, of what others can make happen at any rate."""

from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import LINES_MAX, SparingLog


def test_a_flood_is_a_few_lines_and_a_number():
    lines, clock = [], ManualClock()
    log = SparingLog(lines.append, clock)
    clock.advance(20)
    for number in range(1000):
        log(f"line {number}")
    assert lines[:LINES_MAX] == [f"line {number}" for number in range(LINES_MAX)]
    assert lines[LINES_MAX:] == ["more like these are not logged for 40 s"]
    lines.clear()
    clock.advance(40)
    log("anew")
    assert lines == ["990 more were not logged before", "anew"]


def test_what_is_seldom_is_logged_each_time():
    lines, clock = [], ManualClock()
    log = SparingLog(lines.append, clock)
    for _ in range(50):
        log("seldom")
        clock.advance(10)
    assert lines == ["seldom"] * 50
