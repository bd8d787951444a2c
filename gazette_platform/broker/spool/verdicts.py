"""What becomes of the tenures that processes left behind: evidence against verdict. Pure: no I/O.

A broker decides from all tenures of a journal that it has found together. What their content proves
counts; the order of folders, their age, and how they came there do not.

    of the tenure                                              verdict
    ---------------------------------------------------------  ------------------------------------------
    older than etcd's data, and no broker took appends since    WAIT; SAVE if etcd was restored and an
                                                                operator resets the head
    else not a holder (see `epochs.tenure_status`)              YIELD up to the end of its last epoch; of
                                                                a copied home nothing
    a holder, in a copied home                                  SAVE if an operator gives up what is lost,
                                                                and no other here is whole; else WAIT
    a holder, of another broker by etcd, and a living broker
    has a home of the same name                                 WAIT: one of the two is a copy
    a holder, and a replica here goes on with it                WAIT
    a holder, and another copy of it ends further               WAIT until that one is settled
    the only holder in etcd that is not whole, or a copy of
    it went, to an unknown end                                  SAVE
    one of several, but how far a copy of it went is not known  WAIT
    a holder that is not whole, one of several in etcd          SAVE if an operator gives up what is lost,
                                                                and no other here is whole; else WAIT
    a whole holder, and another one here ends further           WAIT
    a whole holder, the furthest here                           LET_GO if the journal waits for it, or is
                                                                suspended, or if this broker leaves and
                                                                etcd names no other; else WAIT

The last one is the `heir`: a replica here may go on with it. If etcd lost its data, it names no holders. A
replica of the new spec goes on with the furthest whole tenure that is older than etcd's data and joins what
the store has (see `continuation`), unless another broker took appends first.

Every holder has all that was acknowledged. So of several tenures any may go on, and the furthest keeps
most. Copies of one tenure are different: the shorter one is older, and lacks what was acknowledged since.

A copied home (see `home`) proves nothing: its original may have gone on, here or elsewhere, and what
was never acknowledged may have been replaced there. So it decides nothing about other tenures either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from gazette_platform.broker.epochs import is_unknown, tenure_status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gazette_platform.broker.epochs import EpochRecord, TenureStatus


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the disk proves of a tenure, or of a copy of it."""

    tenure: str
    create_revision: int
    """Of the journal's spec when the tenure began."""
    end: int
    """Journal offset up to which its record says that content counts."""
    is_whole: bool
    """Whether `end` covers all that was acknowledged, and all content that it needs exists."""
    is_end_known: bool = True
    """Whether it never went further than `end`."""
    begin: int = 0
    """Where the first content begins that is here; `end` if none is."""
    is_older_than_etcd: bool = False
    """Whether etcd lost its data since: that a journal has no spec does not mean that it was deleted."""
    is_copied: bool = False
    """Whether it is in a copied home."""
    is_doubled: bool = False
    """Whether another broker that is alive has the same home: the copy of a whole disk shows neither."""


class Todo(Enum):
    """What to do with a tenure."""

    WAIT = auto()
    """Nothing yet."""
    LET_GO = auto()
    """Store all of it, and let others go on where it ends."""
    SAVE = auto()
    """Store what is left of it; appends wait for an operator."""
    YIELD = auto()
    """Store what belongs to the journal, and set the rest aside."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a tenure."""

    todo: Todo
    valid_to: int = 0
    """With YIELD: journal offset up to which its content belongs to the journal."""


_WAIT = Verdict(Todo.WAIT)


def decide(
    record: EpochRecord | None,
    found: Sequence[Evidence],
    *,
    journal_revision: int | None,
    in_use: Collection[str] = (),
    suspended_at: int | None = None,
    is_leaving: bool = False,
    is_given_up: bool = False,
) -> list[Verdict]:
    """What becomes of the tenures that a broker has found of one journal; see the module's table.

    Args:
        record: what etcd has; None: nothing.
        found: all of them.
        journal_revision: create revision of the journal's present spec; None: it is deleted.
        in_use: ids of tenures that replicas of this broker go on with.
        suspended_at: where the journal goes on, if it is fully suspended; None: it is not.
        is_leaving: whether this broker may not come back.
        is_given_up: whether an operator lets the journal continue without what no holder can prove.

    Returns: a verdict for each of `found`.
    """
    first = heir(record, found, journal_revision=journal_revision, in_use=in_use)
    is_saved = is_given_up and first is None and not in_use
    verdicts = []
    for number, one in enumerate(found):
        status = _status(record, one, journal_revision)
        is_new = is_unknown(record, journal_revision)
        # etcd came back empty: the record that would name the holder is lost with everything else. To yield would set
        # aside what may be the only copy. It waits until a replica of the new spec goes on with it, or does not.
        if one.is_older_than_etcd and is_new:
            # After a restore an operator lets the journal go on after all that the spools have.
            is_stored = is_given_up and is_furthest(found, number, in_use)
            verdicts.append(Verdict(Todo.SAVE) if is_stored else _WAIT)
        elif not status.is_holder:
            # Up to the end of its last epoch the content was part of the journal, whoever holds it now. After that
            # another broker may have given the same offsets to other bytes.
            verdicts.append(Verdict(Todo.YIELD, 0 if one.is_copied else status.valid_to))
        elif one.is_doubled:
            verdicts.append(_WAIT)
        elif number == first:
            # Letting go cannot be taken back: from then on others go on without us. So a reason is needed, and
            # "it has been here for long" is none.
            is_suspended = suspended_at is not None and suspended_at >= one.end
            is_let_go = status.is_wanted or is_suspended or (is_leaving and status.is_alone)
            verdicts.append(Verdict(Todo.LET_GO) if is_let_go else _WAIT)
        elif (is_saved or (status.is_alone and not one.is_copied)) and is_furthest(
            found, number, in_use
        ):
            verdicts.append(Verdict(Todo.SAVE))
        else:
            verdicts.append(_WAIT)
    return verdicts


def heir(
    record: EpochRecord | None,
    found: Sequence[Evidence],
    *,
    journal_revision: int | None,
    in_use: Collection[str] = (),
) -> int | None:
    """Which of `found` a journal may go on with: the furthest whole holder. Arguments as of `decide`.

    Returns: its place in `found`; None: none of them.
    """
    # Whole ones only. A holder that cannot prove all that was acknowledged would continue below an end that a
    # client knows, and the offsets in between would be given out twice.
    heirs = [
        number
        for number, one in enumerate(found)
        if _status(record, one, journal_revision).is_holder
        and one.is_whole
        and not one.is_copied
        and not one.is_doubled
        and not is_shadow(found, number, in_use)
    ]
    return max(heirs, key=lambda number: (found[number].end, found[number].tenure), default=None)


def continuation(found: Sequence[Evidence], *, stored_end: int) -> int | None:
    """Which of `found` a journal continues with that had no appends since etcd lost its data.

    Args:
        found: all tenures of the journal.
        stored_end: where the content in its store ends.

    Returns: its place in `found`; None: none of them joins what is stored.
    """
    # Without a record from etcd the store is the only other witness. A tenure that begins after what is stored would
    # leave a gap; one that ends before it has been overtaken.
    joining = [
        number
        for number, one in enumerate(found)
        if one.is_older_than_etcd
        and one.is_whole
        and not one.is_copied
        and not one.is_doubled
        and one.begin <= stored_end <= one.end
        and not is_shadow(found, number)
    ]
    return max(joining, key=lambda number: found[number].end, default=None)


def is_shadow(found: Sequence[Evidence], number: int, in_use: Collection[str] = ()) -> bool:
    """Whether a tenure is a copy of one that went further, or may have gone further."""
    one = found[number]
    return not is_furthest(found, number, in_use) or (
        one.is_whole and any(not other.is_end_known for other in _copies(found, one))
    )


def is_furthest(found: Sequence[Evidence], number: int, in_use: Collection[str] = ()) -> bool:
    """Whether no other copy of a tenure that proves anything has more. Of equal ones the first counts."""
    one = found[number]
    furthest = max(_copies(found, one), key=_extent)
    return one.tenure not in in_use and one is furthest


def _copies(found: Sequence[Evidence], one: Evidence) -> list[Evidence]:
    """All that is here of a tenure; without what copied homes have, unless it is in one itself."""
    return [
        other
        for other in found
        if other.tenure == one.tenure and (one.is_copied or not other.is_copied)
    ]


def _extent(one: Evidence) -> tuple[int, bool, bool, bool]:
    # Length first: of two copies the longer one was made later. The rest only breaks ties, in favour of what
    # proves more.
    return one.end, not one.is_copied, one.is_whole, one.is_end_known


def _status(
    record: EpochRecord | None, one: Evidence, journal_revision: int | None
) -> TenureStatus:
    return tenure_status(
        record,
        one.tenure,
        create_revision=one.create_revision,
        journal_revision=journal_revision,
    )
