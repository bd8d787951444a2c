"""Who holds all that was acknowledged of a journal, and what follows from that. Pure: no I/O.

Spools outlive their processes. They come back at once, after weeks, or never. So etcd has a record of
each journal, under no lease, that names its *holders*: tenures (see `spool.home`) that each have all
that was acknowledged. Nothing is acknowledged unless every holder has it.

A primary that has brought the brokers of its route into step may take appends

    if one of them is a holder         all of them have its content, and are the holders from then on
    if there is no record              the journal is new, or was served by Gazette's brokers
    if the former holders let go       appends continue after the head that they noted
    if they noted the head             the spec and the record agree that nothing was appended since
    if an operator says so             `gazctl journals reset-head` gives up what only others hold

and otherwise waits until one of the holders comes back. Each change of holders begins an *epoch*.

A tenure whose process has ended goes on where it was if it is a holder. If it is not, others have gone
on without it. Its content up to the end of the last epoch in which it was a holder belongs to the
journal, and the others have it too. The rest does not: other content has those offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from gazette_platform.protocol import LabelSet, ProcessId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


# The register of journals that were restored from a backup. It names the backup, and takes the place of all
# former registers, so that no writer passes a check of them.
RESTORED: Final = "gazette-restored"
_VERSION: Final = 1
# How many epochs the record remembers whose content a tenure may hold that is in no store. A tenure
# whose content is stored, or set aside, is taken out by its broker (see `settled`), so only those of lost
# disks stay. Some 100 bytes each: etcd takes 1.5 MB at most.
_PAST_MAX: Final = 1000
# A record of fewer epochs is small enough to be left as it is.
_PAST_FEW: Final = 4
_INT64_MAX: Final = (1 << 63) - 1


class Holder(NamedTuple):
    """A tenure, and the broker that it belongs to."""

    tenure: str
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Past:
    """An epoch that is over."""

    holders: tuple[Holder, ...]
    end: int
    """Journal offset at which the next one began."""


@dataclass(frozen=True, slots=True)
class Released:
    """Where a journal goes on at the least, and with which registers.

    All content before is stored, or about to be. A record says this from the moment when a holder lets
    go of the journal, or notes its head, until content follows: the primary takes it out of the record
    before it appends any. So whoever finds it knows that nothing was acknowledged after `head`, and no
    newer registers.
    """

    head: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What etcd records of a journal."""

    create_revision: int
    """Of the journal's spec. A journal that was deleted and created again shares nothing with it."""
    epoch: int
    holders: tuple[Holder, ...]
    past: tuple[Past, ...] = ()
    """Oldest first."""
    released: Released | None = None
    is_wanted: bool = False
    """Whether appends wait for a holder that is not in the journal's route."""
    saved: Released | None = None
    """The end and the registers that holders which are not whole know of, once an operator gives up the rest."""
    is_restored: bool = False
    """Whether the spec is from a backup, and nothing was appended since: who held the journal is not known, and only
    an operator knows whether all spools are here."""

    def encode(self) -> bytes:
        """The value in etcd."""
        said = {
            "version": _VERSION,
            "create_revision": self.create_revision,
            "epoch": self.epoch,
            "holders": _holders_to_json(self.holders),
            "past": [{"holders": _holders_to_json(p.holders), "end": p.end} for p in self.past],
            "released": _released_to_json(self.released),
            "wanted": self.is_wanted,
        }
        if self.saved is not None:
            said["saved"] = _released_to_json(self.saved)
        if self.is_restored:
            said["restored"] = True
        return json.dumps(said, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value of etcd. Raises: ValueError: it is not an epoch record."""
        try:
            said = json.loads(value)
            if said["version"] != _VERSION:
                raise ValueError(f"version {said['version']} (expected {_VERSION})")
            return cls(
                _number(said["create_revision"]),
                _number(said["epoch"]),
                _holders_from_json(said["holders"]),
                tuple(
                    Past(_holders_from_json(p["holders"]), _number(p["end"])) for p in said["past"]
                ),
                _released_from_json(said["released"]),
                bool(said["wanted"]),
                _released_from_json(said.get("saved")),
                bool(said.get("restored")),
            )
        except (KeyError, TypeError, RecursionError) as err:
            raise ValueError(f"malformed epoch record: {err!r}") from err

    def _next(
        self, holders: tuple[Holder, ...], end: int, released: Released | None = None
    ) -> EpochRecord:
        past = self.past
        if self.holders:
            # Of each tenure the latest epoch counts.
            later = {one.tenure for one in self.holders}
            past = (*_without(past, later), Past(self.holders, end))[-_PAST_MAX:]
        return EpochRecord(self.create_revision, self.epoch + 1, holders, past, released)


def _without(past: Iterable[Past], tenures: Collection[str]) -> tuple[Past, ...]:
    """Epochs without these tenures, and without those that had no other holder."""
    left = (
        Past(tuple(one for one in epoch.holders if one.tenure not in tenures), epoch.end)
        for epoch in past
    )
    return tuple(epoch for epoch in left if epoch.holders)


def _holders_to_json(holders: tuple[Holder, ...]) -> list[list[str]]:
    return [[one.tenure, one.process.zone, one.process.suffix] for one in holders]


def _holders_from_json(said: Any) -> tuple[Holder, ...]:
    return tuple(
        Holder(_text(tenure), ProcessId(_text(zone), _text(suffix)))
        for tenure, zone, suffix in said
    )


def _released_to_json(released: Released | None) -> dict[str, Any] | None:
    if released is None:
        return None
    return {"head": released.head, "registers": released.registers.pairs()}


def _released_from_json(said: Any) -> Released | None:
    if said is None:
        return None
    registers = LabelSet.of(*((_text(name), _text(v)) for name, v in said["registers"]))
    return Released(_number(said["head"]), registers)


def _number(said: Any) -> int:
    """A revision or an offset. Raises: TypeError, ValueError: it is none."""
    if type(said) is not int:
        raise TypeError(f"{type(said).__name__} in place of a number")
    if not 0 <= said <= _INT64_MAX:
        raise ValueError(f"{said} in place of a revision or an offset")
    return said


def _text(said: Any) -> str:
    """Text that can go to logs, terminals and other brokers. Raises: TypeError, ValueError."""
    if not isinstance(said, str):
        raise TypeError(f"{type(said).__name__} in place of a text")
    if not said.isprintable():
        raise ValueError(f"{said!r} in place of a name")
    return said


# ------------------------------------------------------------------------- of a primary in step
@dataclass(frozen=True, slots=True)
class Unchanged:
    """The record is as it should be."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Write this record; None: delete the existing one."""

    record: EpochRecord | None


@dataclass(frozen=True, slots=True)
class GoOn:
    """Begin at this offset first, with these registers."""

    head: int
    registers: LabelSet | None
    """None: those that the spools have."""


@dataclass(frozen=True, slots=True)
class Await:
    """Take no appends: one of these holders has to come back."""

    holders: tuple[Holder, ...]
    record: EpochRecord | None
    """To be written, so that the holders know that they are wanted; None: it says so already."""


@dataclass(frozen=True, slots=True)
class Doubled:
    """Take no appends: these brokers continue copies of one spool, and which has more is unknown."""

    holders: tuple[Holder, ...]


Decision = Unchanged | Claim | GoOn | Await | Doubled


def claim(
    record: EpochRecord | None,
    *,
    create_revision: int,
    holders: frozenset[Holder] | None,
    end: int,
    registers: LabelSet | None = None,
    noted_head: int | None = None,
    is_reset: bool = False,
) -> Decision:
    """What a primary does before it takes appends, once all brokers of its route are in step.

    Args:
        record: what etcd has; None: nothing.
        create_revision: of the journal's spec.
        holders: the tenures of all brokers of the route; None: some of them keep nothing beyond
            their processes, as brokers of Gazette do not.
        end: journal offset at which all of them are.
        registers: the registers that all of them have there; None: not checked.
        noted_head: where the journal goes on according to its spec, as that of a journal that was
            suspended has it; None: the spec does not say. Anybody may apply an old spec, so it lets no
            one go on without a holder, unless the record covers it.
        is_reset: whether an operator gives up what only others hold.
    """
    # The journal was deleted and created again: its former holders hold bytes of another journal.
    if record is not None and record.create_revision != create_revision:
        record = EpochRecord(create_revision, record.epoch, ())
    if is_reset and record is not None and (end or not record.is_restored):
        record = _with_saved(record, holders, end)
    released = record.released if record is not None else None
    if released is not None and end <= released.head:
        # Replicas that began at the offset in the spec are at the head, but lack the registers.
        is_there = end == released.head and registers in (None, released.registers)
        if not is_there:
            return GoOn(max(released.head, noted_head or 0), released.registers)
    decision = _claim(record, create_revision, holders, end, noted_head, is_reset=is_reset)
    is_refused = isinstance(decision, Await | Doubled)
    if noted_head is not None and end < noted_head and not is_refused:
        # The spools go there before the claim. If an operator then applied a spec without that offset,
        # appends would begin where content already is.
        return GoOn(noted_head, None)
    return decision


def _with_saved(record: EpochRecord, holders: frozenset[Holder] | None, end: int) -> EpochRecord:
    """The record with the last registers that are known, for an operator who gives up all other holders.

    Without them a stale writer would pass the checks of registers. A holder in the route knows better.
    """
    tenures = {one.tenure for one in holders or ()}
    saved = record.saved
    if saved is None or any(one.tenure in tenures for one in record.holders):
        return record
    return replace(record, released=_furthest(record.released, Released(end, saved.registers)))


def _claim(  # noqa: PLR0911  one per condition
    record: EpochRecord | None,
    create_revision: int,
    holders: frozenset[Holder] | None,
    end: int,
    noted_head: int | None,
    *,
    is_reset: bool,
) -> Unchanged | Claim | Await | Doubled:
    """As `claim`, of brokers that are not before any head that is known."""
    if record is not None and record.is_restored:
        released = record.released if record.released and record.released.head == end else None
        # Also if a spool joins what is stored: others may have gone on without it, and come back later.
        if not is_reset:
            return Await((), None)
        ours = tuple(sorted(holders or ()))
        if len({one.tenure for one in ours}) < len(ours):
            return Doubled(ours)
        return Claim(EpochRecord(create_revision, 1, ours, released=released))
    if holders is None:
        # From `end` on there is no record of holders. What former holders have before it stays valid.
        if record is None or not (record.holders or record.released):
            return Unchanged()
        return Claim(record._next((), end))  # noqa: SLF001
    # Two brokers cannot hold one tenure: each begins its own, at random. So a disk was copied, and both go on.
    ours = tuple(sorted(holders))
    tenures = {one.tenure for one in holders}
    if len(tenures) < len(ours):
        return Doubled(ours)
    if record is None:
        return Claim(EpochRecord(create_revision, 1, ours))
    released = record.released
    note = released if released is not None and released.head == end else None
    if tenures == {one.tenure for one in record.holders}:
        # A tenure may have gone on in a broker with another name, on the same disk.
        same = replace(record, holders=ours, is_wanted=False, released=note, saved=None)
        return Claim(same) if same != record else Unchanged()
    if is_reset:
        # An operator gives up what lies behind `end`, whoever held it: other content takes its place.
        past = tuple(replace(one, end=min(one.end, end)) for one in record.past)
        return Claim(replace(record, past=past)._next(ours, end, note))  # noqa: SLF001
    # One former holder is enough: each has all that was acknowledged, since an append is answered only when
    # all of the route have it. Without any of them it is unknown whether more was acknowledged than is here.
    has_heir = any(one.tenure in tenures for one in record.holders)
    is_covered = (
        released is not None and noted_head is not None and noted_head <= released.head == end
    )
    if has_heir or is_covered or not record.holders:
        return Claim(record._next(ours, end, note))  # noqa: SLF001
    wanted = None if record.is_wanted else replace(record, is_wanted=True)
    return Await(record.holders, wanted)


def noted(
    record: EpochRecord | None,
    tenure: str,
    *,
    create_revision: int,
    head: int | None,
    registers: LabelSet,
) -> EpochRecord | None:
    """The record once a primary notes in the spec where its journal goes on, or takes that note back.

    Args:
        record: what etcd has; None: nothing.
        tenure: of the primary.
        create_revision: of the journal's spec.
        head: what the spec says from now on, where the primary's spool ends; None: content follows.
        registers: as of `head`.

    Returns: the record as it is, if the primary is not a holder.
    """
    if record is None or record.create_revision != create_revision:
        return record
    if all(one.tenure != tenure for one in record.holders):
        return record
    return replace(record, released=None if head is None else Released(head, registers))


# ---------------------------------------------------------------- of a tenure whose process ended
def is_unknown(record: EpochRecord | None, journal_revision: int | None) -> bool:
    """Whether etcd has nothing that says who held a journal with this spec."""
    return record is None or record.is_restored or record.create_revision != journal_revision


@dataclass(frozen=True, slots=True)
class TenureStatus:
    """What a tenure means to its journal now."""

    is_holder: bool
    is_alone: bool = False
    """Whether it is the only holder."""
    is_wanted: bool = False
    """Whether the journal waits for its content."""
    valid_to: int = 0
    """Journal offset up to which its content is the journal's, if it is not a holder any more."""


def tenure_status(
    record: EpochRecord | None, tenure: str, *, create_revision: int, journal_revision: int | None
) -> TenureStatus:
    """What a tenure means to its journal now.

    Args:
        record: what etcd has; None: nothing.
        tenure: its id.
        create_revision: of the journal's spec when the tenure began.
        journal_revision: create revision of the journal's present spec; None: it is deleted.
    """
    if record is None or not record.create_revision == create_revision == journal_revision:
        return TenureStatus(is_holder=False)
    if any(one.tenure == tenure for one in record.holders):
        is_alone = len(record.holders) == 1
        return TenureStatus(is_holder=True, is_alone=is_alone, is_wanted=record.is_wanted)
    # The latest epoch of a tenure counts: it may have been a holder, lost the journal, and got it back.
    for past in reversed(record.past):
        if any(one.tenure == tenure for one in past.holders):
            return TenureStatus(is_holder=False, valid_to=past.end)
    return TenureStatus(is_holder=False)


def announce(
    record: EpochRecord | None, tenure: str, *, create_revision: int, head: int, registers: LabelSet
) -> EpochRecord | None:
    """The record once a holder is about to store its content, and to let go of the journal then.

    Holders have different ends if appends were never acknowledged, and an operator may give up what
    they have. A broker that continues from now on does so after this holder's end: what it stores would
    contradict other content there.

    Args:
        record: what etcd has; None: nothing.
        tenure: of the holder.
        create_revision: of the journal's spec when the tenure began.
        head: where its content ends.
        registers: as of `head`.

    Returns: the record as it is, if it says so already; None: the tenure is not a holder any more.
    """
    if record is None or record.create_revision != create_revision:
        return None
    if all(one.tenure != tenure for one in record.holders):
        return None
    return replace(record, released=_furthest(record.released, Released(head, registers)))


def ending(
    record: EpochRecord | None, tenure: str, *, create_revision: int, head: int, registers: LabelSet
) -> EpochRecord | int:
    """What a broker that has failed says of its spool, before it stores what is in it.

    Args:
        record: what etcd has; None: nothing.
        tenure: its id.
        create_revision: of the spec that the broker served.
        head: where the spool ends.
        registers: as of `head`.

    Returns: the record to be written first; or, if there is nothing to say, the journal offset up to which the spool
        may be stored.
    """
    # Beside brokers of Gazette there are no holders, and what was acknowledged may be in no other spool.
    if record is None or not (record.holders or record.released):
        return head
    if [one.tenure for one in record.holders] == [tenure]:
        return head  # what we hold alone waits for us
    following = announce(
        record, tenure, create_revision=create_revision, head=head, registers=registers
    )
    if following is not None:
        return head if following == record else following
    status = tenure_status(
        record, tenure, create_revision=create_revision, journal_revision=create_revision
    )
    return status.valid_to


def save(
    record: EpochRecord | None, tenure: str, *, create_revision: int, head: int, registers: LabelSet
) -> EpochRecord | None:
    """The record once an operator gives up what a holder that is not whole does not know.

    It lets no broker go on. The reset that follows does, with the registers of the furthest such holder.

    Returns: the record as it is, if it says so already; None: the tenure is not a holder any more.
    """
    if record is None or record.create_revision != create_revision:
        return None
    if all(one.tenure != tenure for one in record.holders):
        return None
    return replace(record, saved=_furthest(record.saved, Released(head, registers)))


def settled(record: EpochRecord | None, tenure: str, *, create_revision: int) -> EpochRecord | None:
    """The record once all content of a tenure that was a holder is stored, or set aside.

    No other broker can prove that. So a tenure stays in the record, however many epochs go by, until its
    broker has come back.

    Returns: None: the record stays as it is.
    """
    if record is None or record.create_revision != create_revision:
        return None
    if not is_long(record):
        return None
    *former, last = record.past
    last = Past(tuple(one for one in last.holders if one.tenure != tenure), last.end)
    past = (
        *_without(former, {tenure}),
        last,
    )  # the last one says who may let go still, or that none may
    return replace(record, past=past) if past != record.past else None


def is_long(record: EpochRecord) -> bool:
    """Whether a record has so many epochs that tenures which are settled should be taken out of it."""
    return len(record.past) > _PAST_FEW


def _furthest(former: Released | None, later: Released) -> Released:
    return former if former is not None and former.head >= later.head else later


def release(
    record: EpochRecord | None, tenure: str, *, create_revision: int, head: int, registers: LabelSet
) -> EpochRecord | None:
    """The record once a holder, which has stored its content, lets go of the journal.

    If several holders let go, the one with the most content says where the journal goes on.

    Args:
        record: what etcd has; None: nothing.
        tenure: of the holder that lets go.
        create_revision: of the journal's spec when the tenure began.
        head: where its content ends.
        registers: as of `head`.

    Returns: None: the record stays as it is.
    """
    if record is None or record.create_revision != create_revision:
        return None
    released = Released(head, registers)
    # The first holder that lets go ends the epoch for all. Those that follow may only move the head forward: what
    # they have beyond it was never acknowledged, but is the journal's once stored.
    if any(one.tenure == tenure for one in record.holders):
        released = _furthest(record.released, released)
        return record._next((), released.head, released)  # noqa: SLF001
    former = record.released
    if record.holders or former is None or former.head >= head or not record.past:
        return None  # others have gone on, or said as much
    if all(one.tenure != tenure for one in record.past[-1].holders):
        return None
    past = (*record.past[:-1], replace(record.past[-1], end=head))
    return replace(record, past=past, released=released)
