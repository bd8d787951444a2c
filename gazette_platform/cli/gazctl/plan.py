"""What documents of specs change in a cluster: which specs are new, equal, or differ. Pure.

A spec without a revision says how its journal or shard should be, as users of other tools expect. An equal one is
left alone, and one that differs is changed only by force. A spec with a revision is a compare-and-set, as in Gazette.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

S = TypeVar("S")

_TEXTS_MAX: Final = 3
_DIFFS_MAX: Final = 3
_NAMES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Wanted(Generic[S]):
    """What a document says of one journal or shard."""

    name: str
    spec: S | None
    """None deletes it."""
    revision: int = 0
    """That it must be at: 0 if the document gives none, -1 for any."""


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """A journal or shard of the cluster."""

    spec: S
    revision: int


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    """What to do about documents."""

    changes: list[Wanted[S]] = field(default_factory=list)
    """To send, each with the revision that it expects."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """By name: created, changed, deleted or unchanged."""
    differing: list[Wanted[S]] = field(default_factory=list)
    """Specs that give no revision, and differ from those in the cluster."""


def plan(
    wanted: Sequence[Wanted[S]], found: Mapping[str, Found[S]], *, force: bool = False
) -> Plan[S]:
    """Compare documents with the cluster.

    Args:
        wanted: what the documents say.
        found: what the cluster has, by name.
        force: whether to change specs that differ and give no revision.
    """
    made: Plan[S] = Plan()
    for each in wanted:
        now = found.get(each.name)
        if each.spec is None:
            made.outcomes[each.name] = "deleted"
        elif now is None:
            made.outcomes[each.name] = "created"
        elif each.revision:
            made.outcomes[each.name] = "changed"
        elif now.spec == each.spec:
            made.outcomes[each.name] = "unchanged"
            continue
        elif force:
            made.outcomes[each.name] = "changed"
            made.changes.append(replace(each, revision=now.revision))
            continue
        else:
            made.differing.append(each)
            continue
        made.changes.append(each)
    return made


def report(outcomes: Mapping[str, str], revision: int = 0) -> list[str]:
    """Say what was done: a line for each name, up to a bound, and a count.

    Args:
        outcomes: as of `Plan`.
        revision: of etcd after the last transaction; 0: there was none.

    >>> report({"a/one": "unchanged", "a/two": "created"}, 7)
    ['a/two: created', 'a/one: unchanged', '1 created, 1 unchanged (revision 7)']
    """
    at = f" (revision {revision})" if revision else ""
    names = sorted(outcomes, key=lambda name: outcomes[name] == "unchanged")
    if len(names) == 1:
        return [f"{names[0]}: {outcomes[names[0]]}{at}"]
    lines = [f"{name}: {outcomes[name]}" for name in names[:_NAMES_MAX]]
    if len(names) > _NAMES_MAX:
        lines.append(f"… and {len(names) - _NAMES_MAX} more")
    kinds = ("created", "changed", "deleted", "unchanged")
    counts = {kind: sum(each == kind for each in outcomes.values()) for kind in kinds}
    count = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return [*lines, (count or "nothing to apply") + at]


def differences(
    differing: Sequence[Wanted[S]],
    found: Mapping[str, Found[S]],
    *,
    group: str,
    as_yaml: Callable[[S], str],
) -> tuple[list[str], ValidationError]:
    """Show how specs differ from those in the cluster.

    Args:
        differing: of `Plan`; at least one.
        found: as of `plan`.
        group: of commands: ``journals`` or ``shards``.
        as_yaml: renders a spec.

    Returns: the lines of diffs, and the error that says how to go on.
    """
    from difflib import unified_diff  # noqa: PLC0415  few need it

    lines: list[str] = []
    for each in differing[:_DIFFS_MAX]:
        now = found[each.name]
        assert each.spec is not None
        lines += unified_diff(
            as_yaml(now.spec).splitlines(),
            as_yaml(each.spec).splitlines(),
            f"{each.name} (in the cluster, revision {now.revision})",
            f"{each.name} (to apply)",
            lineterm="",
        )
    first, more = differing[0].name, len(differing) - 1
    who = (
        f"{first} and {more} more exist with other specs"
        if more
        else f"{first} exists with another spec"
    )
    shown = "the differences are above" if more < _DIFFS_MAX else "the first differences are above"
    return lines, ValidationError(
        f"{who}; {shown}, and nothing was applied (to change what exists, run the command again with "
        f"--force, or run `gazctl {group} edit {first}`)"
    )


def stale(wanted: Sequence[Wanted[S]], found: Mapping[str, Found[S]], *, group: str) -> str:
    """Say which of the changes are at another revision than they expect; empty if none is."""
    told = []
    for each in wanted:
        now = found.get(each.name)
        at = 0 if now is None else now.revision
        if each.revision in {-1, at}:
            continue
        if at and not each.revision:
            told.append(
                f"{each.name} was created by someone else meanwhile (run the command again to compare its spec, "
                f"or run `gazctl {group} edit {each.name}`)"
            )
            continue
        is_at = f"is at revision {at}" if at else "does not exist"
        told.append(f"{each.name} {is_at}, and the specs expect revision {each.revision}")
    return some_of(told)


def some_of(texts: Sequence[str]) -> str:
    """Join the first texts, and count the others: beyond so many, one finds out from the first ones.

    >>> some_of(["a", "b", "c", "d"])
    'a; b; c; and 1 more'
    """
    more = f"; and {len(texts) - _TEXTS_MAX} more" if len(texts) > _TEXTS_MAX else ""
    return "; ".join(texts[:_TEXTS_MAX]) + more
