"""Runs, backfills, reprocessing and maintenance of a typed table in any order, held up and dying anywhere."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from typed_amendments import NAME, QUARANTINE, Interrupted, Journals, everything, filled, spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import TableFenced
from gazette_platform.lake.typed.runs.amending import Quarantined

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def make(client, names, tmp_path):
    made = []

    def make(seed):
        made.append(Journals(client, tmp_path, names.journal(f"{len(made)}"), seed=seed))
        return filled(made[-1])

    yield make
    for one in made:
        one.catalog.close()


def dead(tables):
    """The catalog of one who dies before he settles quarantine."""
    return Interrupted(tables, [_die] * 20, QUARANTINE)


class _Died(BaseException):
    pass


def _die():
    raise _Died


def held_up(world, draw):
    """The catalog of one who is held up while others do something, or who dies."""
    then = [lambda: meanwhile(world, draw) for _ in range(draw.choice([0, 0, 1, 2]))]
    held = draw.choice([NAME, QUARANTINE])
    return draw.choice(
        [
            Interrupted(world.tables, then, held),
            dead(world.tables),
        ]
    )


def meanwhile(world, draw):
    with suppress(_Died):
        step(world, draw, draw.choice([world.tables, dead(world.tables)]))


def step(world, draw, tables):
    """Something."""
    name = draw.choice(list(world.logs))
    wanted = spec(is_strict=draw.random() < 0.6)
    acts = (
        "append",
        "append",
        "roll",
        "run",
        "run",
        "backfill",
        "backfill",
        "reprocess",
        "optimize",
        "expire",
    )
    act = draw.choice(acts)
    log = world.logs[name]
    begin = draw.randint(0, max(0, log.head - 1))
    end = draw.randint(begin + 1, log.head + 100)
    match act:
        case "append":
            for _ in range(draw.randint(1, 4)):
                world.append(name, has_late=draw.random() < 0.6)
        case "roll":
            world.roll()
        case "run":
            world.run(wanted, tables)
        case "backfill":
            world.backfill(wanted, draw.choice([{name: [(begin, end)]}, everything(world)]), tables)
        case "reprocess":
            meant = draw.choice([None, Quarantined(journal=name, begin=begin, end=end)])
            world.reprocess(wanted, meant, tables)
        case "optimize":
            world.optimize()
        case _:
            world.expire()


@pytest.mark.parametrize("seed", range(2))
def test_each_message_exists_once_whatever_is_done_and_whoever_dies(make, seed):
    world = make(seed)
    world.run(spec(is_strict=True))
    draw = Random(seed)
    for _ in range(12):
        try:
            step(world, draw, held_up(world, draw))
        except (TableFenced, _Died):
            continue
        finally:
            world.look()
    world.run(spec(is_strict=True))
    world.look()
    aside = world.places(QUARANTINE)
    assert sorted(world.places(NAME) + aside) == sorted(world.committed())
    # Those that fit any spec, and those that fit none.
    assert all(
        place in world.lacking or not good
        for place, good in world.committed().items()
        if place in aside
    )
    assert all(place in aside for place, good in world.committed().items() if not good)
