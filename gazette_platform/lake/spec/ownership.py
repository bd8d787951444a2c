"""Whose a table or a rollup is, as its spec says it for Dagster's catalog."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SHOWN_MAX = 80
_OWNERS_MAX = 50
_OWNER = re.compile(
    r"(?:team:\S[^\n]{0,200}|[A-Za-z0-9_][A-Za-z0-9._%+-]{0,99}@[A-Za-z0-9.-]{1,200}\.[A-Za-z]{2,7})\Z"
)
_TAG = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}\Z")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}\Z")


def shown(text: str) -> str:
    """A text of a spec, in an error."""
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"


def ownership_errors(owners: Sequence[str], tags: Mapping[str, str]) -> Iterator[ValidationError]:
    """What Dagster's catalog would not take: there it would keep all definitions from loading."""
    if len(owners) > _OWNERS_MAX or len(tags) > _OWNERS_MAX:
        yield ValidationError(f"has more than {_OWNERS_MAX} owners or tags", path="owners")
        return
    for index, owner in enumerate(owners):
        if not _OWNER.match(owner):
            yield ValidationError(
                f"{shown(owner)} is neither an email address nor `team:` and a name",
                path=f"owners[{index}]",
            )
    for key, value in tags.items():
        if not _TAG.match(key) or key.startswith("dagster/") or not _TAG_VALUE.match(value):
            yield ValidationError(
                f"{shown(key)}: {shown(value)} is not a tag: letters, digits, `_`, `-` and `.`, 63 at "
                "most; keys may have a prefix of these and `/`, other than `dagster/`",
                path="tags",
            )
