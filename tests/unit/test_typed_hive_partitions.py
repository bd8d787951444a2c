"""Which fragments are in a Hive partition, as backfills ask it."""

import pytest

from gazette_platform.client import FragmentListing
from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.layout import ASIDE
from gazette_platform.lake.spec.table_spec import Partition, TableSpec
from gazette_platform.lake.typed.runs.backfilling import fragments_of
from gazette_platform.protocol import Fragment

PARTITIONS = (Partition(name="hour", type="int"), Partition(name="day", type="date", alias="Flown"))
RAW = TableSpec(name="raw.flights", selector="", format="json", columns=(), partitions=PARTITIONS)
POSTFIX = "day=2026-01-02/hour=05"


def fragment(postfix=POSTFIX):
    journal = "flights/origin=JFK/part=0"
    return FragmentListing(Fragment(journal, 0, 9, backing_store="file:///", path_postfix=postfix))


@pytest.mark.parametrize(
    ("values", "is_in"),
    [
        ({"origin": "JFK"}, True),
        ({"origin": "LGA"}, False),
        ({"origin": "JFK", "flown": "2026-01-02"}, True),
        ({"Flown": "2026-01-02", "hour": "5"}, True),
        ({"hour": "05"}, True),
        ({"hour": "6"}, False),
        ({"day": "2026-01-02"}, False),  # that is what paths call it
        ({}, True),
    ],
)
def test_fragments_are_found_by_partition_columns(values, is_in):
    is_wanted = fragments_of(RAW, values)
    assert is_wanted(fragment()) == is_in
    # One that was set aside is content of its partition as ever.
    assert is_wanted(fragment(f"{ASIDE}/{POSTFIX}")) == is_in


def test_partitions_from_before_a_key_came_are_not_its_own():
    is_wanted = fragments_of(RAW, {"hour": "5"})
    assert not is_wanted(fragment("day=2026-01-02"))
    assert is_wanted(fragment("hour=05"))


def test_values_that_are_none_are_reported():
    with pytest.raises(LakeError, match="hour=five is not a int"):
        fragments_of(RAW, {"hour": "five"})(fragment())
