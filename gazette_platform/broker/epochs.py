"""Who holds all that was acknowledged of a journal, and what follows from that. Pure: no I/O.

Spools outlive their processes, and come back: at once, after weeks, or never. So etcd has a record for
each journal, under no lease, of the *holders*: those tenures (see `spool_home`) of which each has all
that was acknowledged. Nothing is acknowledged unless all holders have it.

A primary that has brought the brokers of its route into step may take appends

    if one of them is a holder         all of them have its content: they are the holders from then on
    if there is no record              of a new journal, or one that others than we have served
    if the former holders let go       behind the head that they noted
    if an operator says so             `gazctl journals reset-head`: what only others hold is given up

and else has to wait for one of the holders to come back. Each change begins an *epoch*.

A tenure whose process ended goes on where it was if it is a holder. If it is not, others have gone on
without it: what it has below the end of its own last epoch is the journal's, as theirs is. What it has
behind that end is not: other content has those offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from gazette_platform.protocol import LabelSet, ProcessId

__all__ = [
    "Await",
    "Claim",
    "Decision",
    "EpochRecord",
    "GoOn",
    "Held",
    "Holder",
    "Past",
    "Released",
    "Standing",
    "claim",
    "release",
    "standing",
]

_VERSION: Final = 1
# A tenure that was no holder for as many epochs is not told where its own ended.
_PAST_MAX: Final = 8


class Holder(NamedTuple):
    """A tenure, and the broker whose it is."""

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
    """Where a journal goes on that nobody holds: all before is stored, or about to be."""

    head: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What etcd has of a journal."""

    create_revision: int
    """Of the journal's spec: one that was made anew has nothing to do with the former."""
    epoch: int
    holders: tuple[Holder, ...]
    past: tuple[Past, ...] = ()
    """Oldest first."""
    released: Released | None = None
    is_wanted: bool = False
    """Whether somebody waits for a holder that is not in the journal's route."""

    def encode(self) -> bytes:
        """The value in etcd."""
        released = self.released
        said = {
            "version": _VERSION,
            "create_revision": self.create_revision,
            "epoch": self.epoch,
            "holders": _holders_to_json(self.holders),
            "past": [{"holders": _holders_to_json(p.holders), "end": p.end} for p in self.past],
            "released": released
            and {
                "head": released.head,
                "registers": [[label.name, label.value] for label in released.registers.labels],
            },
            "wanted": self.is_wanted,
        }
        return json.dumps(said, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """What a value says. Raises: ValueError: it is none of ours."""
        try:
            said = json.loads(value)
            if said["version"] != _VERSION:
                raise ValueError(f"version {said['version']} (expected {_VERSION})")
            released = said["released"]
            return cls(
                said["create_revision"],
                said["epoch"],
                _holders_from_json(said["holders"]),
                tuple(Past(_holders_from_json(p["holders"]), p["end"]) for p in said["past"]),
                released
                and Released(
                    released["head"],
                    LabelSet.of(*((name, text) for name, text in released["registers"])),
                ),
                said["wanted"],
            )
        except (KeyError, TypeError) as err:
            raise ValueError(f"malformed epoch record: {err!r}") from err

    def _next(
        self, holders: tuple[Holder, ...], end: int, released: Released | None = None
    ) -> EpochRecord:
        past = self.past
        if self.holders:
            past = (*past, Past(self.holders, end))[-_PAST_MAX:]
        return EpochRecord(self.create_revision, self.epoch + 1, holders, past, released)


def _holders_to_json(holders: tuple[Holder, ...]) -> list[list[str]]:
    return [[one.tenure, one.process.zone, one.process.suffix] for one in holders]


def _holders_from_json(said: Any) -> tuple[Holder, ...]:
    return tuple(Holder(tenure, ProcessId(zone, suffix)) for tenure, zone, suffix in said)


# ------------------------------------------------------------------------- of a primary in step
@dataclass(frozen=True, slots=True)
class Held:
    """The record is as it should be."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Write this record; None: delete the one that is there."""

    record: EpochRecord | None


@dataclass(frozen=True, slots=True)
class GoOn:
    """Begin at this offset first, with these registers."""

    head: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Await:
    """Take no appends: one of these has to come back."""

    holders: tuple[Holder, ...]
    record: EpochRecord | None
    """To be written, so that they know of us; None: it says so already."""


Decision = Held | Claim | GoOn | Await


def claim(  # noqa: PLR0911  one per condition
    record: EpochRecord | None,
    *,
    create_revision: int,
    holders: frozenset[Holder] | None,
    end: int,
    registers: LabelSet | None = None,
    has_noted_head: bool = False,
    is_reset: bool = False,
) -> Decision:
    """What a primary does before it takes appends, once all brokers of its route are in step.

    Args:
        record: what etcd has; None: nothing.
        create_revision: of the journal's spec.
        holders: the tenures of all brokers of the route; None: some of them keep nothing that
            survives their processes, such as those of Gazette.
        end: journal offset at which all of them are.
        registers: as all of them have them there; None: those that there should be.
        has_noted_head: whether the spec says where the journal goes on, as of one that was suspended.
        is_reset: whether an operator gives up what only others hold.
    """
    if record is not None and record.create_revision != create_revision:
        record = EpochRecord(create_revision, record.epoch, ())
    if holders is None:
        return Claim(None) if record is not None else Held()
    ours = tuple(sorted(holders))
    if record is None:
        return Claim(EpochRecord(create_revision, 1, ours))
    released = record.released
    if released is not None and not is_reset and end <= released.head:
        # Who begins where the spec says that the journal goes on is at its head without its registers.
        is_there = end == released.head and registers in (None, released.registers)
        if not is_there:
            return GoOn(released.head, released.registers)
    tenures = {one.tenure for one in holders}
    if tenures == {one.tenure for one in record.holders}:
        # A tenure may have gone on in a broker of another name, on the same disk.
        same = replace(record, holders=ours, is_wanted=False)
        return Claim(same) if same != record else Held()
    if is_reset:
        # What lies behind is given up by all who ever held it: other content takes its place.
        past = tuple(replace(one, end=min(one.end, end)) for one in record.past)
        return Claim(replace(record, past=past)._next(ours, end))  # noqa: SLF001
    has_heir = any(one.tenure in tenures for one in record.holders)
    if has_heir or has_noted_head or not record.holders:
        return Claim(record._next(ours, end))  # noqa: SLF001
    wanted = None if record.is_wanted else replace(record, is_wanted=True)
    return Await(record.holders, wanted)


# ---------------------------------------------------------------- of a tenure whose process ended
@dataclass(frozen=True, slots=True)
class Standing:
    """What a tenure is to its journal now."""

    is_holder: bool
    is_alone: bool = False
    """Whether nobody else is."""
    is_wanted: bool = False
    """Whether the journal waits for its content."""
    valid_to: int = 0
    """Journal offset up to which its content is the journal's, if it is no holder any more."""


def standing(
    record: EpochRecord | None, tenure: str, *, create_revision: int, journal_revision: int | None
) -> Standing:
    """What a tenure is to its journal now.

    Args:
        record: what etcd has; None: nothing.
        tenure: its id.
        create_revision: of the journal's spec when the tenure began.
        journal_revision: of the spec that there is now; None: there is none.
    """
    if record is None or not record.create_revision == create_revision == journal_revision:
        return Standing(is_holder=False)
    if any(one.tenure == tenure for one in record.holders):
        is_alone = len(record.holders) == 1
        return Standing(is_holder=True, is_alone=is_alone, is_wanted=record.is_wanted)
    for past in reversed(record.past):
        if any(one.tenure == tenure for one in past.holders):
            return Standing(is_holder=False, valid_to=past.end)
    return Standing(is_holder=False)


def release(
    record: EpochRecord | None, tenure: str, *, create_revision: int, head: int, registers: LabelSet
) -> EpochRecord | None:
    """The record once a holder lets go of a journal, whose content it has stored.

    Of several holders that let go the one that has most counts.

    Args:
        record: what etcd has; None: nothing.
        tenure: which lets go.
        create_revision: of the journal's spec when it began.
        head: where its content ends.
        registers: as of `head`.

    Returns: None: there is nothing to be said.
    """
    if record is None or record.create_revision != create_revision:
        return None
    released = Released(head, registers)
    if any(one.tenure == tenure for one in record.holders):
        return record._next((), head, released)  # noqa: SLF001
    former = record.released
    if former is None or former.head >= head or not record.past:
        return None
    if all(one.tenure != tenure for one in record.past[-1].holders):
        return None
    past = (*record.past[:-1], replace(record.past[-1], end=head))
    return replace(record, past=past, released=released)
