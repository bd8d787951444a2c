"""Which journal an offset belongs to."""

import doctest

import pytest

from gazette_platform.errors import JournalReplaced
from gazette_platform.protocol import DOUBTED, identity, require_same


def test_examples_hold():
    assert doctest.testmod(identity).failed == 0


@pytest.mark.parametrize(("kept", "now"), [(43, 43), (0, 43), (43, 0), (0, 0)])
def test_same_or_unknown_journal_is_taken(kept, now):
    require_same("a/b", kept, now, offset=7, advice="begin at 0")


@pytest.mark.parametrize(("kept", "now"), [(43, 77), (77, 43), (DOUBTED, 43), (DOUBTED, 0)])
def test_another_journal_is_refused(kept, now):
    with pytest.raises(JournalReplaced) as told:
        require_same("a/b", kept, now, offset=7, advice="begin at 0")
    assert (told.value.journal, told.value.offset, told.value.retriable) == ("a/b", 7, False)
    assert str(told.value) == (
        f"a/b was deleted and made again: offset 7 belongs to the journal that was created at revision {kept} of etcd, "
        f"and this one was created at revision {now} (begin at 0)"
    )
