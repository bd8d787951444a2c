"""Times that options take."""

from __future__ import annotations

import time

import pytest
import typer

from gazette_platform.cli.gazctl.arguments import UNIX_TIME_MAX, instant_option, parse_instant
from gazette_platform.errors import ValidationError

NOW_S = 1_800_000_000.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1700000000", 1_700_000_000),
        ("@1700000000", 1_700_000_000),
        (str(UNIX_TIME_MAX), UNIX_TIME_MAX),
        ("@-1h", 1_799_996_400),
        ("-1h30m", 1_799_994_600),
        ("@-2d", 1_799_827_200),
        ("@-1d12h", 1_799_870_400),
        ("@-0", 1_800_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-15T00:13:20.5+02:00", 1_700_000_000),
        ("2023-11-14", 1_699_920_000),
    ],
)
def test_times_are_unix_seconds(text, expected):
    assert parse_instant(text, NOW_S) == expected


@pytest.fixture
def far_east(monkeypatch):
    """This machine's own time is not UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
@pytest.mark.parametrize(
    ("text", "expected"), [("2023-11-14T22:13:20", 1_700_000_000), ("2023-11-14", 1_699_920_000)]
)
def test_a_time_without_offset_is_utc_wherever_this_machine_is(text, expected):
    assert parse_instant(text, NOW_S) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@",
        "now",
        "@-1",
        "@-1w",
        "@--1h",
        "1h",
        "@+1h",
        "-99999d",
        str(UNIX_TIME_MAX + 1),
        "9" * 30,
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        "2023-13-01",
        "٣",
    ],
)
def test_invalid_time_is_refused_with_the_valid_forms(text):
    with pytest.raises(ValidationError, match="expected Unix seconds"):
        parse_instant(text, NOW_S)


def test_an_option_says_so_as_wrong_usage():
    assert instant_option(0) == 0
    with pytest.raises(typer.BadParameter, match="expected Unix seconds"):
        instant_option("yesterday")
