"""The theme `lying listings` of `make lake-crash`, on a real broker and S3 server, beside a metastore in memory."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager

import pytest
from lake_stand_ins import ask_files, metastore_in_memory
from object_servers import need_go

from gazette_platform.lake import LakeSettings
from tests.lake_crash.plan import THEMES, make_case
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


def run(opened):
    said = []
    number = THEMES.index("lying listings")
    config = LakeCrashConfig(
        database="lies", cases=[make_case(7, number)], engines={"files": ask_files}, is_aimed=False
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
