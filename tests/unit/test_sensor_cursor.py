"""The text of the sensor's cursor: short however many journals there are."""

import base64
import json
import random
import zlib

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import ValidationError
from gazette_platform.lake import JournalCursor, RegistrationCursor
from gazette_platform.sensors.audits import AuditState
from gazette_platform.sensors.cursor import (
    SensorCursor,
    pack,
    problem_digest,
    unpack,
    unpacked,
)

offsets = st.integers(0, 1 << 62)
holes = st.lists(st.tuples(offsets, offsets), max_size=3).map(tuple)
journals = st.builds(JournalCursor, offsets, st.none() | offsets, holes)
names = st.text('ab/=%"\\é', max_size=4)


def of_platform(tables, journals, *, seed=7):
    """As a platform's, with offsets as random as they may be below a TiB."""
    numbers = random.Random(seed)
    ends = {
        f"shop.events{t:03}": {
            f"shop/events{t:03}/region=eu-west-{n % 3}/part={n:03}": numbers.randrange(1 << 40)
            for n in range(journals)
        }
        for t in range(tables)
    }
    return SensorCursor(
        RegistrationCursor(
            {
                table: {
                    journal: JournalCursor(end, max(0, end - numbers.randrange(1 << 28)))
                    for journal, end in found.items()
                }
                for table, found in ends.items()
            }
        ),
        problems=dict.fromkeys(ends, problem_digest([])),
        audits={
            table: AuditState(
                journal=min(found), offset=max(found.values()), told="4f53cda18c2baa0c"
            )
            for table, found in ends.items()
        },
        folder="0123456789abcdef",
    )


@pytest.mark.parametrize(
    ("tables", "journals", "characters"),
    [(100, 10, 24_000), (100, 100, 200_000), (1, 1000, 20_000)],
)
def test_the_cursor_of_many_journals_is_short(tables, journals, characters):
    cursor = of_platform(tables, journals)
    text = cursor.dump()
    assert len(text) < characters
    assert text.isascii()
    assert SensorCursor.parse(text) == cursor
    assert json.loads(text).keys() == {"__class__", "journals", "red", "tables", "waiting"}
    # What it would be, were it written out as before.
    assert len(text) < len(json.dumps(unpacked(text), separators=(",", ":"))) / 3


@given(st.dictionaries(names, st.dictionaries(names, journals, max_size=3), max_size=3))
def test_packed_values_are_unpacked(tables):
    registered = RegistrationCursor(tables)
    cursor = SensorCursor(registered, problems={"a": "ok"}, turn="é")
    assert SensorCursor.parse(cursor.dump()) == cursor
    raw = {**registered.to_json(), "more": [1]}
    text = pack(raw)
    assert unpack(text) == raw
    assert pack(unpack(text)) == text
    assert json.loads(json.dumps(text)) == text
    assert len(json.dumps(text)) == len(text) + 2  # nothing of it is escaped


def damaged():
    good = json.loads(of_platform(2, 3).dump())["__class__"]
    lacking = json.dumps(
        {"version": 3, "tables": [{"s.a": ["a/0", "a/1"]}, [1], [0], [None], [0], {}]}
    )
    packed = "z1:" + base64.b85encode(zlib.compress(lacking.encode())).decode()
    return [good[:-9], "z1:", "z1:é", good.replace("z1:", "z2:"), packed, "x", 3, []]


@pytest.mark.parametrize("hidden", damaged())
def test_a_damaged_cursor_says_how_to_go_on(hidden):
    with pytest.raises(ValidationError, match="clear it in the Dagster UI"):
        SensorCursor.parse(json.dumps({"__class__": hidden}))


@pytest.mark.parametrize("text", ["", None])
def test_no_text_is_an_empty_cursor(text):
    assert SensorCursor.parse(text) == SensorCursor()
