"""The theme `lying listings` of `make lake-crash`, on a real broker and S3 server, beside a metastore in memory."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager

import pytest
from lake_stand_ins import ask_files, metastore_in_memory
from object_servers import need_go

from gazette_platform.lake import LakeSettings
from tests.lake_crash.plan import THEMES, Case, Seen, Store, Tick, make_case
from tests.lake_crash.runner import LakeCrashConfig, run_lake_crash
from tests.lake_crash.world import open_objects, world_over

pytestmark = [pytest.mark.etcd, pytest.mark.s3, pytest.mark.timeout(600)]

BROKER = """
from gazette_platform.cli.gazette import main
from tests.benches import lake_plants
lake_plants.let_fragments_be_old()
{plant}
main()
"""


@contextmanager
def world(folder, *, plant=""):
    need_go("GAZETTE_VERSITYGW")
    program = (sys.executable, "-c", BROKER.format(plant=plant))
    with ExitStack() as stack:
        objects = stack.enter_context(open_objects(folder / "s3"))
        settings = LakeSettings(
            metastore=stack.enter_context(metastore_in_memory()),
            store=objects.store,
            store_roots={"file:///": f"file://{folder}/lake/fragments/"},
        )
        yield stack.enter_context(world_over(folder, settings, objects, program=program))


def run(opened, *, case=None, plant=""):
    said = []
    config = LakeCrashConfig(
        database="lies",
        cases=[case or make_case(7, THEMES.index("lying listings"))],
        engines={"files": ask_files},
        is_aimed=False,
        plant=plant,
    )
    return run_lake_crash(config, opened, say=said.append, show=lambda _: None), "\n".join(said)


def test_counts_are_exact_though_every_second_listing_is_odd(tmp_path):
    with world(tmp_path / "world") as opened:
        result, said = run(opened)
        assert result.is_ok, said
        assert opened.lies("lies-c011") > 10


def test_broker_that_believes_odd_listings_is_noticed(tmp_path):
    with world(tmp_path / "world", plant="lake_plants.believe_listings()") as opened:
        _, said = run(opened)
    assert "after a lie brokers list" in said


@pytest.mark.parametrize("plant", ["", "tests.benches.lake_plants:see_no_overlaps"])
def test_repair_of_what_ticks_left_undone_is_noticed(tmp_path, plant):
    """In S3 a person's repair ends each case, and would hide that ticks moved no covered file that was counted."""
    steps = (Store(0, 0, 4, "05"), Seen(), Tick(2), Store(0, 0, 8, "05"), Seen(), Tick(2))
    with world(tmp_path / "world") as opened:
        result, said = run(opened, case=Case(0, "spanning", ("s3",), steps), plant=plant)
    if plant:
        assert "a repair changed" in said
        assert "ticks left that undone" in said
    else:
        assert result.is_ok, said
