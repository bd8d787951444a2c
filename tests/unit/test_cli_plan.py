"""What documents of specs change: created, unchanged, differing, forced."""

import pytest

from gazette_platform.cli.gazctl.plan import Found, Wanted, differences, plan, report, stale

FOUND = {"a/one": Found("x: 1", 5), "a/two": Found("x: 2", 6)}


def test_new_specs_are_created_and_equal_ones_left_alone():
    made = plan([Wanted("a/one", "x: 1"), Wanted("a/three", "x: 3")], FOUND)
    assert made.outcomes == {"a/one": "unchanged", "a/three": "created"}
    assert made.changes == [Wanted("a/three", "x: 3", 0)]
    assert made.differing == []


def test_different_spec_without_revision_is_not_sent():
    made = plan([Wanted("a/one", "x: 9"), Wanted("a/three", "x: 3")], FOUND)
    assert made.differing == [Wanted("a/one", "x: 9")]


def test_force_expects_the_revision_that_was_compared():
    made = plan([Wanted("a/one", "x: 9"), Wanted("a/two", "x: 2")], FOUND, force=True)
    assert made.changes == [Wanted("a/one", "x: 9", 5)]
    assert made.outcomes == {"a/one": "changed", "a/two": "unchanged"}


@pytest.mark.parametrize("revision", [5, 4, -1])
def test_spec_with_revision_is_sent_as_it_is(revision):
    """Compare-and-set, as in Gazette, even if the spec is equal."""
    wanted = [Wanted("a/one", "x: 1", revision), Wanted("a/two", None, revision)]
    made = plan(wanted, FOUND)
    assert made.changes == wanted
    assert made.outcomes == {"a/one": "changed", "a/two": "deleted"}


def test_difference_is_shown_as_a_diff_of_yaml():
    lines, error = differences(
        [Wanted("a/one", "x: 9\ny: 2")], FOUND, group="journals", as_yaml=str
    )
    assert lines == [
        "--- a/one (in the cluster, revision 5)",
        "+++ a/one (to apply)",
        "@@ -1 +1,2 @@",
        "-x: 1",
        "+x: 9",
        "+y: 2",
    ]
    assert str(error) == (
        "a/one exists with another spec; the differences are above, and nothing was applied (to change what "
        "exists, run the command again with --force, or run `gazctl journals edit a/one`)"
    )


def test_many_differences_show_the_first():
    found = {f"a/{n}": Found(f"x: {n}", n) for n in range(9)}
    wanted = [Wanted(name, "x: 99") for name in found]
    lines, error = differences(wanted, found, group="shards", as_yaml=str)
    assert sum(line.startswith("---") for line in lines) == 3
    assert str(error).startswith("a/0 and 8 more exist with other specs; the first differences")


def test_report_names_what_changed_first_and_counts_the_rest():
    outcomes = {f"a/{n:02}": "unchanged" for n in range(30)} | {"b": "created"}
    lines = report(outcomes, 7)
    assert lines[0] == "b: created"
    assert lines[-2:] == ["… and 11 more", "1 created, 30 unchanged (revision 7)"]
    assert report({"b": "deleted"}, 7) == ["b: deleted (revision 7)"]
    assert report({}) == ["nothing to apply"]


def test_stale_revisions_say_where_each_is():
    wanted = [
        Wanted("a/one", "x", 4),
        Wanted("a/two", "x", 6),
        Wanted("a/three", "x", 3),
        Wanted("a/two", "x", 0),
    ]
    text = stale(wanted, FOUND, group="shards")
    assert text.split("; ") == [
        "a/one is at revision 5, and the specs expect revision 4",
        "a/three does not exist, and the specs expect revision 3",
        (
            "a/two was created by someone else meanwhile (run the command again to compare its spec, or run "
            "`gazctl shards edit a/two`)"
        ),
    ]
    assert not stale(wanted[1:2], FOUND, group="shards")
