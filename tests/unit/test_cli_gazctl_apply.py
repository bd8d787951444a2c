"""`gazctl journals apply` against a fake broker: what differs, and which files."""

from dataclasses import replace

import pytest
from gazctl_runner import TWO_JOURNALS

from gazette_platform.protocol import SuspendLevel, SuspendSpec


def test_stale_revision_is_reported_with_what_to_do(gazctl):
    gazctl("apply", stdin=TWO_JOURNALS)
    listed = gazctl("list", "-o", "yaml").out
    assert gazctl("apply", stdin=listed).code == 0
    result = gazctl("apply", stdin=listed)
    assert result.code == 1
    assert "a/one is at revision 3, and the specs expect revision 2" in result.err
    assert "list again, and apply on top" in result.err


def test_equal_specs_are_unchanged_and_need_no_call(gazctl, broker):
    gazctl("apply", stdin=TWO_JOURNALS)
    result = gazctl("apply", stdin=TWO_JOURNALS)
    assert (result.code, result.err) == (0, "a/one: unchanged\na/two: unchanged\n2 unchanged\n")
    assert broker.calls["Apply"] == 1


def test_changed_spec_without_revision_shows_the_difference(gazctl, broker, tmp_path):
    gazctl("apply", stdin=TWO_JOURNALS)
    more = TWO_JOURNALS.replace(b"1048576", b"2097152") + b"- name: a/zoo\n"
    (tmp_path / "more.yaml").write_bytes(more)
    result = gazctl("apply", "more.yaml")
    assert result.code == 1
    *diff, error = result.err.splitlines()
    assert "--- a/one (in the cluster, revision 2)" in diff
    assert "-  length: 1048576" in diff
    assert "+  length: 2097152" in diff
    assert error.startswith("gazctl: error: a/one and 1 more exist with other specs")
    assert "--force, or run `gazctl journals edit a/one`" in error
    assert broker.calls["Apply"] == 1
    forced = gazctl("apply", "more.yaml", "--force")
    assert forced.err == (
        "a/one: changed\na/two: changed\na/zoo: created\n1 created, 2 changed (revision 3)\n"
    )
    assert broker.journals["a/one"].spec.fragment.length == 2097152


def test_suspension_of_a_journal_is_not_a_difference(gazctl, broker):
    gazctl("apply", stdin=TWO_JOURNALS)
    journal = broker.journals["a/one"]
    suspended = SuspendSpec(SuspendLevel.FULL, 7)
    journal.spec = replace(journal.spec, suspend=suspended)
    assert "a/one: unchanged" in gazctl("apply", stdin=TWO_JOURNALS).err
    changed = TWO_JOURNALS.replace(b"1048576", b"2097152")
    assert gazctl("apply", "--force", stdin=changed).code == 0
    assert broker.journals["a/one"].spec.suspend == suspended


def test_apply_takes_several_files_in_one_transaction(gazctl, broker, tmp_path):
    (tmp_path / "a.yaml").write_bytes(TWO_JOURNALS)
    (tmp_path / "b.yaml").write_bytes(TWO_JOURNALS.replace(b"a/", b"b/"))
    assert gazctl("apply", "a.yaml", "b.yaml").err.endswith("\n4 created (revision 2)\n")
    again = gazctl("apply", "a.yaml", "-", stdin=TWO_JOURNALS)
    assert again.code == 1
    assert "a/one is in a.yaml and in stdin (nothing was applied; keep one" in again.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.yaml", "--specs", "a.yaml"], "give files or --specs, and not both"),
        (["a.yaml", "a.yaml"], "a.yaml is given twice"),
        (["missing.yaml"], "FILE: cannot read missing.yaml: No such file or directory"),
        (["."], "FILE: cannot read .: Is a directory"),
    ],
)
def test_wrong_files_of_apply_are_named(gazctl, broker, tmp_path, arguments, text):
    (tmp_path / "a.yaml").write_bytes(TWO_JOURNALS)
    result = gazctl("apply", *arguments)
    assert result.code == 1
    assert text in result.err
    assert not broker.calls
