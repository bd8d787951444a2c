"""Registration ended, or answered with an error, at each of its steps: nothing lost, nothing twice.

A history of fragments is played against the sensor's tick, with one fault at the n-th call of a
neighbour: brokers, metastore, Dagster's store. A process is killed before or after the call takes
effect; or the call fails, before it takes effect or (an ambiguous answer) after. Then ticks go on, and
in the end accounts are those of the fragments, and the events in Dagster are what accounts say.
"""

import pytest
from lake_world import MODES, Steps, World

from gazette_platform.errors import LakeError

pytestmark = pytest.mark.long


def steps_of_a_history(root):
    with World(root, Steps()) as world:
        world.play()
        world.settle()
        world.check()
        return world.steps.count


def spoil(root, at, mode):
    with World(root, Steps(at, mode)) as world:
        world.play()
        world.settle()
        assert world.steps.spoiled
        world.check()


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_at_some_steps(tmp_path, mode):
    for at in range(1 + 7 * MODES.index(mode), steps_of_a_history(tmp_path), 61):
        spoil(tmp_path / str(at), at, mode)


def test_a_lock_that_is_held_makes_the_other_wait_and_then_read_again(tmp_path):
    with World(tmp_path, Steps()) as world:
        world.append("a/part=0", 1, "05")
        world.tick()
        world.append("a/part=0", 1, "05")
        with world.metastore.connect() as session:
            table = session.table("s", "a")
            with session.accounts_lock("s", "a"):
                with (
                    pytest.raises(
                        LakeError, match=r"are being changed by gazette .* for more than 0 s"
                    ),
                    session.accounts_lock("s", "a", wait_s=0),
                ):
                    raise AssertionError("two hold it")
                (before,) = session.partitions(table)
            world.tick()
            (after,) = session.partitions(table)
        assert (before.parameters["numRows"], after.parameters["numRows"]) == ("1", "2")
        world.check()
