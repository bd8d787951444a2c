"""Which journal an offset belongs to."""

import doctest

import pytest

from gazette_platform.errors import JournalReplaced
from gazette_platform.protocol import (
    DOUBTED,
    created_by,
    history_bits,
    is_another,
    learned,
    offsets,
    require_same,
)

BITS = history_bits("9f3c")
OTHER = history_bits("a101")


def test_examples_hold():
    assert doctest.testmod(offsets).failed == 0


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


def test_same_revision_of_another_etcd_is_refused():
    with pytest.raises(JournalReplaced) as told:
        require_same(
            "a/b", created_by(43, BITS), created_by(43, OTHER), offset=7, advice="begin at 0"
        )
    assert str(told.value) == (
        "a/b was deleted and made again: offset 7 belongs to the journal that was created at revision 43 of etcd, and "
        "this one was created at revision 43 of another etcd: etcd was set up again since (begin at 0)"
    )


def test_error_names_revisions_without_histories():
    with pytest.raises(
        JournalReplaced, match=r"at revision 43 of etcd, .* at revision 77 "
    ) as told:
        require_same(
            "a/b", created_by(43, BITS), created_by(77, BITS), offset=7, advice="begin at 0"
        )
    assert "another etcd" not in str(told.value)


@pytest.mark.parametrize(("kept", "now"), [(43, created_by(43, BITS)), (created_by(43, BITS), 43)])
def test_revisions_are_compared_where_a_history_is_unknown(kept, now):
    """A former release did not keep it, and brokers of Gazette do not send it."""
    assert not is_another(kept, now)
    assert learned(kept, now) == created_by(43, BITS)
    assert is_another(kept, created_by(44, OTHER))


def test_created_is_an_exact_float():
    """JSON may be read as floating point."""
    largest = created_by((1 << 40) - 1, (1 << 13) - 1)
    assert int(float(largest)) == largest == (1 << 53) - 1
    assert all(0 < history_bits(f"{n:x}") < 1 << 13 for n in range(20_000))
