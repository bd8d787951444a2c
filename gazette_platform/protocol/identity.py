"""Which journal an offset belongs to. Pure.

A journal that is deleted and made again keeps its name, and its offsets begin again: an offset of the former
journal stands for other bytes in the new one. Whoever keeps an offset therefore keeps the *create revision* of the
journal beside it: the revision of etcd that created the key of its spec. Every listing carries it, so a check costs
one call that most readers make anyway, and it never returns to a former value while etcd keeps its data.

Rejected: a digest of the content before the offset. It needs a read for each check, the content may be pruned by
then, and regular records give the same digest in both journals.

If etcd is set up again from a listing, create revisions change, although stored content may be the same. Only a
person can know that, so readers refuse, and a person decides. They do not change where specs are applied to a new etcd as
early as they were to the former one, because each counts from 1: that is not noticed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import JournalReplaced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "DOUBTED",
    "created_list",
    "created_map",
    "is_another",
    "join_created",
    "require_same",
    "split_created",
]

DOUBTED: Final = -1
"""Kept instead of a create revision: no journal is the one that was read, until a person decides."""


# In a JSON object of offsets by journal. It is an entry of its own, because Gazette's gazctl takes such objects, too, and
# passes over names of journals that it does not read. No name has a `#`.
_CREATED: Final = "#created"


def is_another(kept: int, now: int) -> bool:
    """Return whether a kept offset belongs to another journal than the one that has its name now.

    Args:
        kept: create revision that was kept with the offset; 0: unknown, as in files of former releases.
        now: create revision of the journal; 0: unknown, as brokers of old releases do not say it.

    >>> is_another(7, 9), is_another(7, 7), is_another(0, 9), is_another(DOUBTED, 0)
    (True, False, False, True)
    """
    return kept == DOUBTED or (bool(kept and now) and kept != now)


def require_same(journal: str, kept: int, now: int, *, offset: int, advice: str) -> None:
    """Refuse an offset of another journal.

    Args:
        journal: its name.
        kept: create revision that was kept with the offset.
        now: that of the journal.
        offset: what was kept.
        advice: what a person can do, in the imperative.

    Raises: JournalReplaced.
    """
    if is_another(kept, now):
        evidence = f"the journal that was created at revision {kept} of etcd, and this one was created at revision {now}"
        raise JournalReplaced(journal, offset, evidence, advice)


def join_created(offsets: Mapping[str, int], created: Mapping[str, int]) -> dict[str, int]:
    """Return one object of offsets and of the create revisions of their journals.

    >>> join_created({"b": 2, "a": 1}, {"a": 43, "c": 44})
    {'a': 1, 'a#created': 43, 'b': 2}
    """
    noted = {f"{name}{_CREATED}": created[name] for name in offsets if created.get(name)}
    return dict(sorted({**offsets, **noted}.items()))


def created_list(offsets: Mapping[str, int], created: Mapping[str, int]) -> list[int]:
    """Return create revisions in the order of the names of `offsets`, as a message has them beside these.

    >>> created_list({"b": 2, "a": 1}, {"a": 43, "c": 44})
    [43, 0]
    """
    return [created.get(name, 0) for name in sorted(offsets)]


def created_map(offsets: Mapping[str, int], listed: Sequence[int]) -> dict[str, int]:
    """Return the create revisions that are known, by name. A list of another length says nothing.

    >>> created_map({"b": 2, "a": 1}, [43, 0]), created_map({"b": 2, "a": 1}, [])
    ({'a': 43}, {})
    """
    if len(listed) != len(offsets):
        return {}
    return {name: one for name, one in zip(sorted(offsets), listed, strict=True) if one}


def split_created(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return offsets and create revisions of an object that may have both; values are not looked at.

    >>> split_created({"a": 1, "a#created": 43, "b": 2})
    ({'a': 1, 'b': 2}, {'a': 43})
    """
    offsets = {name: value for name, value in found.items() if not name.endswith(_CREATED)}
    created = {name.removesuffix(_CREATED): found[name] for name in found.keys() - offsets.keys()}
    return offsets, created
