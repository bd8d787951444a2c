"""In which state a rollup is, by what the next run would do and what Dagster says of its sources."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gazette_platform.assets import checks
from gazette_platform.assets.checks import OVERLAP_CHECK
from gazette_platform.errors import LakeError
from gazette_platform.lake.dagster_web import DagsterWeb, RedCheck
from gazette_platform.lake.rollups import Plan, Sealed, SliceCover, parse_rollup
from gazette_platform.lake.rollups.status import NOT_HEEDED, QUERY_CHECK, RollupState, state_of

SPEC = parse_rollup(
    "-- name: rollups.by_day\n-- sources: [shop.orders]\n--\nSELECT count(*) AS n FROM orders",
    engine="trino",
)
IDLE, DUE = Plan(), Plan(make={("eu",): SliceCover("code")})
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UNFIT = RedCheck("shop.orders", "fits_spec", "2 of 100 records do not fit", SINCE)
OVERLAP = RedCheck("shop.orders", OVERLAP_CHECK, "two files hold the same", SINCE)
QUERY = RedCheck("rollups.by_day", QUERY_CHECK, "no source has a column `x`", SINCE)
WAITS = "rollups.by_day waits for shop.orders, which is not made yet"
SHOWS_ALL = "(`gazctl lake check shop.orders` shows all)"
FAILURE = "run 0123abcd failed since 2026-01-02T03:04:05Z: Cannot cast"


def decided(plan, *, is_made=True, missing="", red=(), failure=""):
    return state_of(SPEC, plan, missing=missing, is_made=is_made, red=red, failure=failure)


@pytest.mark.parametrize(
    ("found", "state", "says"),
    [
        (decided(IDLE), RollupState.FRESH, ""),
        # Nothing is to be made, so nothing is held up.
        (decided(IDLE, red=[UNFIT], failure=FAILURE), RollupState.FRESH, ""),
        (decided(DUE), RollupState.BEHIND, ""),
        (decided(DUE, red=[OVERLAP]), RollupState.BEHIND, ""),
        (decided(DUE, is_made=False), RollupState.NEVER_MADE, ""),
        (decided(IDLE, is_made=False), RollupState.NEVER_MADE, "its sources hold nothing yet"),
        (
            decided(DUE, red=[UNFIT], failure=FAILURE),
            RollupState.BLOCKED,
            f"check fits_spec of shop.orders is red since 2026-01-02T03:04:05Z: {UNFIT.text} {SHOWS_ALL}",
        ),
        (
            decided(DUE, red=[QUERY], is_made=False),
            RollupState.BLOCKED,
            f"check query_fits of rollups.by_day is red since 2026-01-02T03:04:05Z: {QUERY.text} {SHOWS_ALL}".replace(
                "check shop.orders", "check rollups.by_day"
            ),
        ),
        # Those of other tables.
        (decided(DUE, red=[replace(QUERY, table="shop.orders")]), RollupState.BEHIND, ""),
        (decided(DUE, red=[replace(UNFIT, table="shop.others")]), RollupState.BEHIND, ""),
        (decided(DUE, red=[replace(UNFIT, table="rollups.by_day")]), RollupState.BEHIND, ""),
        (decided(None, missing=WAITS, is_made=False), RollupState.BLOCKED, WAITS),
        (
            decided(DUE, failure=FAILURE, is_made=False),
            RollupState.FAILED,
            f"{FAILURE} (correct rollups.by_day; Dagster then runs it again)",
        ),
    ],
)
def test_state_and_its_reason(found, state, says):
    assert found == (state, [says] if says else [])


def test_slices_that_cannot_be_made_again_are_reported():
    behind = (Sealed(("eu",), is_behind=True), Sealed(("us",), is_behind=False))
    state, why = decided(Plan(sealed=behind))
    assert state is RollupState.FRESH
    assert why[0].startswith("1 slice cannot be made again, as raw content was pruned")


def test_names_of_checks_are_those_of_dagster():
    assert NOT_HEEDED == OVERLAP_CHECK
    assert QUERY_CHECK == checks.QUERY_CHECK


def test_dagster_that_is_away_is_named():
    with pytest.raises(LakeError, match=r"^Dagster at http://127\.0\.0\.1:9 does not answer: "):
        DagsterWeb("http://127.0.0.1:9/").red_checks(["shop.orders"])
