"""Histories beyond those that were thought of: any order of fragments, registrars, losses and faults."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from lake_world import MODES, Steps, World

from gazette_platform.sensors.cursor import SensorCursor

pytestmark = pytest.mark.long

PARTS, HOURS = ("a/part=0", "a/part=1"), ("05", "06", "07")
journals, hours = st.sampled_from(PARTS), st.sampled_from(HOURS)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), journals, hours),
        st.tuples(st.just("late"), journals, hours),
        st.tuples(st.just("local"), journals, hours),
        st.tuples(st.just("arrive"), st.integers(0, 9)),
        st.tuples(st.just("tick")),
        st.tuples(st.just("fault"), st.integers(1, 40), st.sampled_from(MODES)),
        st.tuples(st.just("other")),
        st.tuples(st.just("lose"), st.sampled_from(["cursor", "home", "partition"])),
        st.tuples(st.just("prune_one"), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=25,
)


class History(World):
    """A world whose journals also have fragments that brokers list late, or that are not stored."""

    def __init__(self, root):
        super().__init__(root, Steps())
        self.hidden = []

    def stored(self, journal, hour):
        """A fragment as they mostly come."""
        self.append(journal, 1, hour)

    def late(self, journal, hour):
        """Bytes that brokers do not list yet, and a fragment after them."""
        made = self.files.append(journal, b'{"id":1}\n' * 2, is_persisted=False)
        self.append(journal, 1, hour)
        self.files.forget(made)
        self.hidden.append((made, hour, False))

    def local(self, journal, hour):
        """Bytes that only brokers have, and a fragment after them."""
        made = self.files.append(journal, b'{"id":1}\n', is_persisted=False)
        self.append(journal, 1, hour)
        self.hidden.append((made, hour, True))

    def prune_one(self, number):
        """One of those that were registered, and not the last of them."""
        journal = PARTS[number % len(PARTS)]
        cursor = SensorCursor.parse(self.cursor).registered.tables.get("s.a", {}).get(journal)
        if cursor is None or self.hidden:
            return
        known = self.files.fragments(journal, 0, 99)
        left = [f for f in known if f.end <= (cursor.last or 0)]
        for made in left[number // 2 :][:1]:
            self.prune(made, made.path_postfix.removeprefix("hour="))

    def arrive(self, number):
        """One of these is stored."""
        if self.hidden:
            made, hour, is_listed = self.hidden.pop(number % len(self.hidden))
            if is_listed:
                self.files.persist(made, postfix=f"hour={hour}", mod_time=self.now)
                self.expect(made, hour)
            else:
                count = made.content_length // 9
                self.append(made.journal, count, hour, begin=made.begin)

    def fault(self, at, mode):
        """The n-th call from now on goes wrong."""
        self.steps.at, self.steps.mode = self.steps.count + at, mode

    def lose(self, what):
        """The sensor's cursor is cleared; or all of Dagster's home; or a Hive partition dropped."""
        match what:
            case "cursor":
                self.cursor = None
            case "home":
                self.cursor, self.instance = None, self.new_instance()
            case _:
                self.drop_partition()


@pytest.mark.timeout(600)  # a minute on an idle machine
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps)
def test_any_history_ends_well(tmp_path_factory, history):
    with History(tmp_path_factory.mktemp("history")) as world:
        world.append(PARTS[0], 1, HOURS[0])
        for name, *arguments in history:
            getattr(world, name)(*arguments)
        while world.hidden:
            world.arrive(0)
        world.steps.at = None
        world.settle(quiet=6)  # a round over all that is old
        world.check()
