"""Prunes, followed by ticks: what goes, what is reported, and what is not taken for a prune."""

import json
import shutil
from dataclasses import replace

import pytest
from dagster import AssetCheckKey, AssetKey
from lake_world import FOLDER, SPEC, Steps, World

from gazette_platform.assets.checks import KEEPS_UP_CHECK
from gazette_platform.errors import LakeError, NoJournalPrimaryBroker
from gazette_platform.lake import JournalCursor, Shrinker, StoreRoots
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Break
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.fragments import run_tick
from gazette_platform.sensors.prunes import PrunePoint, RetentionState

pytestmark = pytest.mark.long

JOURNAL = "a/part=0"
HOURS = ("05", "06", "07", "08")


@pytest.fixture
def world(tmp_path):
    with World(tmp_path, Steps()) as made:
        yield made


def filled(world, *, journal=JOURNAL, hours=HOURS, each=2):
    """So many fragments of a line in each hour, all registered and reported. Returns: them, by hour."""
    made = {hour: [world.append(journal, 1, hour) for _ in range(each)] for hour in hours}
    world.settle(quiet=3)
    world.check()
    return made


def events(world):
    records = world.instance.fetch_materializations(AssetKey(["s", "a"]), limit=1000).records
    return [record.asset_materialization for record in reversed(records)]


def held(world):
    """Accounts by hour of part 0."""
    with world.metastore.connect() as session:
        found = session.partitions(session.table("s", "a"))
    return {
        p.values[1]: PartitionState.from_parameters(p.parameters)
        for p in found
        if p.values[0] == "0"
    }


def problems(world):
    """Texts of what kept the table from keeping up, after it first was asked to do so."""
    records = world.instance.event_log_storage.get_asset_check_execution_history(
        AssetCheckKey(AssetKey(["s", "a"]), KEEPS_UP_CHECK), limit=100
    )
    told = [r.event.dagster_event.asset_check_evaluation_data for r in reversed(records)]
    assert told[0].passed
    return [evaluation.description for evaluation in told[1:]]


def lose_store(world, journal=JOURNAL):
    """Its folder is empty now, as when nothing is mounted there, and brokers have listed it."""
    shutil.rmtree(world.files.root / journal)
    lost = list(world.files.fragments(journal, 0, 10_000))
    for made in lost:
        world.files.forget(made)
    return lost


def test_what_was_pruned_is_reported_once_and_dropped(world):
    made = filled(world)
    told = len(events(world))
    for fragment in (*made["05"], made["06"][0]):
        world.prune(fragment, fragment.path_postfix[5:])
    world.settle(quiet=4)
    world.check()
    assert sorted(held(world)) == ["06", "07", "08"]
    found = {e.partition: e for e in events(world)[told:]}
    assert len(events(world)) == told + 2
    gone, less = found["05"], found["06"]
    assert gone.description == f"all 2 fragments of {JOURNAL} were pruned"
    assert gone.metadata["rows_added"].value == -2
    assert gone.metadata["dagster/partition_row_count"].value == 0
    assert less.metadata["dagster/partition_row_count"].value == 1
    assert less.metadata["fragments"].value == 1
    assert less.metadata["offsets"].value == f"{JOURNAL}: [27, 36)"
    assert held(world)["06"].stored_bytes == held(world)["08"].stored_bytes // 2


def test_a_prune_of_the_middle_is_found_in_turn(world):
    made = filled(world)
    for fragment in (made["06"][1], *made["07"]):
        world.prune(fragment, fragment.path_postfix[5:])
    world.settle(quiet=4)
    world.check()
    assert sorted(held(world)) == ["05", "06", "08"]


def test_a_fragment_that_comes_late_opens_what_was_dropped(world):
    made = filled(world)
    for fragment in made["05"]:
        world.prune(fragment, "05")
    world.settle(quiet=4)
    world.append(JOURNAL, 1, "05", begin=0)
    world.settle(quiet=4)
    world.check()
    assert sorted(held(world)) == ["05", "06", "07", "08"]


def test_nothing_moves_where_nothing_was_pruned(world):
    filled(world)
    altered = world.metastore.partitions_altered
    for _ in range(6):
        world.tick()
    assert world.metastore.partitions_altered == altered


def test_before_brokers_know_nothing_is_forgotten(world):
    made = filled(world)
    for fragment in made["05"]:
        world.files.delete_file(fragment)
    for _ in range(6):
        world.tick()
    assert held(world)["05"].fragments == 2
    for fragment in made["05"]:
        world.files.forget(fragment)
    world.settle(quiet=4)
    assert "05" not in held(world)


def test_files_that_are_still_there_are_not_forgotten(world):
    """As when a store is taken out of the spec of its journal, or a listing is old."""
    made = filled(world)
    for fragment in made["05"]:
        world.files.forget(fragment)
    for _ in range(8):
        world.tick()
    assert held(world)["05"].fragments == 2
    assert "05" in world.instance.get_dynamic_partitions("s.a")


def test_a_journal_that_has_to_wait_keeps_no_other_waiting(world):
    """Its first fragments are not listed any more, and their files exist, for ever."""
    made = filled(world)
    other = filled(world, journal="a/part=1", hours=("05", "06", "07"))
    for fragment in made["05"]:
        world.files.forget(fragment)
    for fragment in other["06"]:
        world.prune(fragment, "06")
    for _ in range(12):
        world.tick()
    with world.metastore.connect() as session:
        names = session.partition_names(session.table("s", "a"))
    assert "part=1/hour=06" not in names
    assert "part=0/hour=05" in names


def test_beginnings_are_asked_for_behind_a_journal_that_cannot_be_listed(world, monkeypatch):
    filled(world)
    filled(world, journal="a/part=1", hours=("05",))
    listed, fronts = world.files.fragments, []

    def fragments(journal, offset, limit):
        fronts.append(journal if (offset, limit) == (0, 1) else "")
        if journal == JOURNAL:
            raise NoJournalPrimaryBroker("no primary")
        return listed(journal, offset, limit)

    monkeypatch.setattr(world.files, "fragments", fragments)
    world.tick()
    for _ in range(3):
        fronts.clear()
        world.tick()
        assert "a/part=1" in fronts


def test_store_that_went_away_is_not_a_prune(world):
    """Not even once fragments are stored where it was."""
    filled(world)
    before = held(world)
    told = len(events(world))
    lost = lose_store(world)
    for _ in range(6):
        world.tick()
    assert held(world) == before
    world.append(JOURNAL, 1, "09", begin=lost[-1].end)
    for _ in range(10):
        world.tick()
    assert {h: s for h, s in held(world).items() if h != "09"} == before
    assert len(events(world)) == told + 1
    (problem,) = problems(world)
    assert "fragments of Hive partition part=0/hour=05 and 3 more are gone" in problem
    assert "brokers list nothing any more of what was registered up to offset 72" in problem
    # It is mounted again, and brokers have listed it.
    for made in lost:
        world.files.append(
            JOURNAL, b'{"id":1}\n', begin=made.begin, postfix=made.path_postfix, mod_time=world.now
        )
    world.settle(quiet=6)
    assert problems(world)[1:] == [
        "The spec is good, and all stored content of 1 journal is registered."
    ]
    # And now it is pruned.
    for made in world.files.fragments(JOURNAL, 0, 2):
        world.prune(made, "05")
    world.settle(quiet=4)
    assert sorted(held(world)) == ["06", "07", "08", "09"]


def test_store_that_went_away_between_ticks_is_not_a_prune(world):
    filled(world)
    before = held(world)
    lost = lose_store(world)
    world.append(JOURNAL, 1, "09", begin=lost[-1].end)
    world.append(JOURNAL, 1, "09", begin=lost[-1].end + 9)
    for _ in range(10):
        world.tick()
    assert {h: s for h, s in held(world).items() if h != "09"} == before


@pytest.mark.parametrize("ticks", [0, 1, 5])
def test_what_brokers_store_again_proves_nothing_of_a_store_that_went_away(world, ticks):
    """Replicas keep their copies for some minutes, and store them if they find nothing."""
    filled(world)
    before = held(world)
    lost = lose_store(world)
    for _ in range(ticks):
        world.tick()
    for made in lost[-2:]:
        postfix, later = made.path_postfix, world.now + 150
        world.files.append(
            JOURNAL, b'{"id":1}\n', begin=made.begin, postfix=postfix, mod_time=later
        )
    for _ in range(10):
        world.tick()
    assert held(world) == before
    world.append(JOURNAL, 1, "09", begin=lost[-1].end, mod_time=world.now + 200)
    for _ in range(10):
        world.tick()
    assert {h: s for h, s in held(world).items() if h != "09"} == before
    # It is back, and then there is a prune.
    for made in lost[:-2]:
        world.files.append(
            JOURNAL, b'{"id":1}\n', begin=made.begin, postfix=made.path_postfix, mod_time=world.now
        )
    world.settle(quiet=6)
    for made in world.files.fragments(JOURNAL, 0, 2):
        world.prune(made, "05")
    world.settle(quiet=4)
    assert sorted(held(world)) == ["06", "07", "08", "09"]


def test_another_store_with_the_same_names_is_not_a_prune(world):
    """Brokers and this process disagree: the fragments that are left are not there."""
    made = filled(world)
    before = held(world)
    for fragment in made["05"]:
        world.files.forget(fragment)
    shutil.rmtree(world.files.root / "a")
    for _ in range(8):
        world.tick()
    assert held(world) == before
    assert "nothing that was registered in its store before is there any more" in problems(world)[0]


def test_a_journal_that_is_gone_was_not_pruned(world):
    filled(world)
    filled(world, journal="a/part=1", hours=("05",))
    lose_store(world)
    world.files.remove(JOURNAL)
    for _ in range(6):
        world.tick()
    with world.metastore.connect() as session:
        assert len(session.partitions(session.table("s", "a"))) == 5


# --------------------------------------------------------------------- two journals


def both(world, hours=("05", "06", "07", "08")):
    """Two fragments an hour of each of two journals, registered and reported. Returns: them, by journal."""
    return {
        journal: filled(world, journal=journal, hours=hours) for journal in (JOURNAL, "a/part=1")
    }


def partitions(world):
    return sorted(world.instance.get_dynamic_partitions("s.a"))


def test_a_time_stays_while_another_journal_has_something_there(world):
    made = both(world)
    told = len(events(world))
    for fragment in made[JOURNAL]["05"]:
        world.prune(fragment, "05")
    world.settle(quiet=4)
    world.check()
    assert "05" not in held(world)
    assert partitions(world) == list(HOURS)
    (event,) = events(world)[told:]
    assert (event.partition, event.metadata["rows_added"].value) == ("05", -2)
    assert event.metadata["dagster/partition_row_count"].value == 2
    assert event.metadata["offsets"].value.startswith("a/part=1: [")
    # Then the other one is pruned, too.
    for fragment in made["a/part=1"]["05"]:
        world.prune(fragment, "05")
    world.settle(quiet=4)
    world.check()
    assert partitions(world) == list(HOURS[1:])
    assert [e.metadata["rows_added"].value for e in events(world)[told:]] == [-2, -2]
    assert events(world)[-1].metadata["fragments"].value == 0


def test_a_time_goes_once_when_all_journals_are_pruned_there(world):
    made = both(world)
    told = len(events(world))
    for found in made.values():
        for fragment in (*found["05"], found["06"][0]):
            world.prune(fragment, fragment.path_postfix[5:])
    world.settle(quiet=6)
    world.check()
    assert partitions(world) == list(HOURS[1:])
    added = [(e.partition, e.metadata["rows_added"].value) for e in events(world)[told:]]
    assert sorted(added) == [("05", -2), ("05", -2), ("06", -1), ("06", -1)]


def test_a_time_that_gets_something_while_it_is_pruned_stays(world):
    made = both(world)
    for fragment in made[JOURNAL]["05"]:
        world.prune(fragment, "05")
    for _ in range(4):
        world.append("a/part=1", 1, "05")
        world.tick()
    world.settle(quiet=4)
    world.check()
    assert "05" not in held(world)
    assert partitions(world) == list(HOURS)


def test_shrunk_partition_that_could_not_be_reported_is_reported_in_turn(world, monkeypatch):
    made = both(world)
    world.prune(made[JOURNAL]["05"][0], "05")
    told = len(events(world))
    with monkeypatch.context() as killed:
        killed.setattr(world, "store", lambda outcome: None)
        for _ in range(9):
            world.tick()
            if held(world)["05"].fragments == 1:
                break
    assert (held(world)["05"].fragments, len(events(world))) == (1, told)
    world.settle(quiet=4)
    world.check()
    (event,) = events(world)[told:]
    assert (event.partition, event.metadata["rows_added"].value) == ("05", -1)


def test_state_round_trip_and_other_releases():
    state = RetentionState(
        PrunePoint("s.a", "a", "hour=1"),
        PrunePoint("s.a", "b"),
        PrunePoint("s.a", "c"),
        {"s.a": {"a": Break(7), "b": Break(8, 9)}},
        {"s.a": {"a": ("because",)}},
    )
    assert RetentionState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert RetentionState().to_json() == {}
    for raw in ([], {"point": 7}, {"broken": {"s.a": {"a": "x"}}}, {"front": [1, 2, 3, 4]}):
        assert RetentionState.from_json(raw) == RetentionState()
    cursor = SensorCursor(retention=state)
    assert SensorCursor.parse(cursor.dump()) == cursor
    assert state.texts("s.a") == ["because"]
    assert state.only([]).to_json().keys() == {"point", "urgent", "front"}


def test_accounts_with_many_holes_are_not_pruned_again_and_again(world):
    """Former releases had room for sixty of an hour, and took the smallest for covered."""
    for n in range(70):
        world.files.append(
            JOURNAL, b'{"id":1}\n', postfix="hour=05", begin=20 * n, mod_time=world.now
        )
    world.append("a/part=1", 1, "05")
    made = [world.append("a/part=1", 1, hour) for hour in ("06", "07", "08")]
    for _ in range(4):
        world.tick()
    altered = world.metastore.partitions_altered
    for _ in range(4):
        world.tick()
    assert world.metastore.partitions_altered == altered
    world.prune(made[1], "07")
    for _ in range(10):
        world.tick()
    with world.metastore.connect() as session:
        names = session.partition_names(session.table("s", "a"))
    assert "part=1/hour=07" not in names


def test_a_journal_whose_accounts_cannot_be_read_keeps_no_other_waiting(world):
    made = filled(world)
    other = filled(world, journal="a/part=1", hours=("05", "06", "07"))
    for fragment in made["05"]:
        world.files.prune(fragment)
    with world.metastore.connect() as session:
        table = session.table("s", "a")
        (first,) = session.partitions_of(table, [("0", "05")]).values()
        changed = replace(first, parameters={**first.parameters, "gazette.state": "{"})
        session.alter_partitions(table, [changed])
    for _ in range(4):
        world.tick()
    for fragment in other["06"]:
        world.prune(fragment, "06")
    for _ in range(12):
        world.tick()
    with world.metastore.connect() as session:
        names = session.partition_names(session.table("s", "a"))
    assert "part=1/hour=06" not in names


def test_foreign_table_by_the_same_name_is_reported_and_ends_no_tick(world):
    filled(world)
    with world.metastore.connect() as session:
        table = session.table("s", "a")
        session.drop_table("s", "a")
        session.create_table(replace(table, parameters={}))
    outcome = run_tick(world.ports(), FOLDER, SensorCursor.parse(world.cursor))
    assert any("s.a" in text for text in (*outcome.problems, *outcome.warnings))
    shrinker = Shrinker(world.files, StoreRoots(world.files.roots))
    with world.metastore.connect() as session:
        assert not shrinker.is_pruned(session, SPEC, JOURNAL)
        with pytest.raises(LakeError, match="was made by others"):
            shrinker.look(
                session,
                SPEC,
                session.table("s", "a"),
                shrinker.journal(JOURNAL),
                JournalCursor(72, 63),
            )
