"""Alphabets and lengths of names.

Lengths are bytes of UTF-8; characters are Unicode letters, numbers and a few symbols. Everything up
to ``#`` is outside every alphabet, because ``#`` separates the parts of an etcd key.

Departs from Gazette in one rule: a path may not have a ``..`` segment. Gazette lets a leading one
pass, which with ``file://`` stores escapes the store's root.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from typing import TYPE_CHECKING, ParamSpec

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

JOURNAL_NAME_LENGTH_MIN = 4
JOURNAL_NAME_LENGTH_MAX = 512
_META_LENGTH_MAX = 512
_META_SEPARATOR = ";"

# `\w` is a letter, a number (categories L* and N*, checked over all of Unicode by a test) or `_`.
_TOKEN = re.compile(r"[\w\-+/.]*")
_PATH = re.compile(r"[\w\-+/.=%]*")

# Brokers check the same few thousand names again and again.
_NAME_CACHE_SIZE = 8192


def _validate(text: str, alphabet: re.Pattern[str], length_min: int, length_max: int) -> None:
    length = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if not length_min <= length <= length_max:
        raise ValidationError(
            f"invalid length ({length}; expected {length_min} <= length <= {length_max})"
        )
    if alphabet.fullmatch(text) is None:
        raise ValidationError(f"not a valid token ({text})")


@lru_cache(_NAME_CACHE_SIZE)
def validate_token(text: str, length_min: int, length_max: int) -> None:
    """Check a token: letters, numbers and ``-_+/.``; lengths in bytes.

    Raises: ValidationError: wrong length or character.
    """
    _validate(text, _TOKEN, length_min, length_max)


@lru_cache(_NAME_CACHE_SIZE)
def validate_path_characters(text: str, length_min: int, length_max: int) -> None:
    """Check the characters of a path (a token's, ``=`` and ``%``) and its length, not its form.

    Raises: ValidationError: wrong length or character.
    """
    _validate(text, _PATH, length_min, length_max)


@lru_cache(_NAME_CACHE_SIZE)
def validate_path_component(text: str, length_min: int, length_max: int) -> None:
    """Check a relative path in its shortest form, without ``.`` and ``..`` segments.

    Raises: ValidationError: wrong length or character, rooted, not clean, or climbing.
    """
    _validate(text, _PATH, length_min, length_max)
    if not text:
        return
    # Python keeps a double slash at the start, which POSIX lets mean something of its own.
    if posixpath.normpath(text) != text or text.startswith("//"):
        raise ValidationError(f"must be a clean path ({text})")
    if text.startswith("/"):
        raise ValidationError(f"cannot begin with '/' ({text})")
    if ".." in text.split("/"):
        raise ValidationError(f"must not have a '..' path segment ({text})")


def validate_journal_name(name: str, *, meta: bool = False) -> None:
    """Check the name of a journal.

    Args:
        name: 4 to 512 bytes, a path component.
        meta: allow a ``;`` and a path component after it, as requests of readers and appenders may
            have.

    Raises: ValidationError.
    """
    if meta and _META_SEPARATOR in name:
        name, suffix = split_meta(name)
        validate_path_component(name, JOURNAL_NAME_LENGTH_MIN, JOURNAL_NAME_LENGTH_MAX)
        validate_path_component(suffix, 1, _META_LENGTH_MAX)
        return
    validate_path_component(name, JOURNAL_NAME_LENGTH_MIN, JOURNAL_NAME_LENGTH_MAX)


def split_meta(name: str) -> tuple[str, str]:
    """The name of a journal, and the meta part after ``;`` ("" if there is none).

    >>> split_meta("a/journal;with/meta")
    ('a/journal', 'with/meta')
    """
    journal, _, meta = name.partition(_META_SEPARATOR)
    return journal, meta


def strip_meta(name: str) -> str:
    """The name of a journal without its meta part, as it is routed, listed and stored."""
    return name.partition(_META_SEPARATOR)[0]


def conflicting_prefix(names: Iterable[str]) -> tuple[str, str] | None:
    """Find a journal whose name is a directory prefix of another's.

    The former would list the latter's fragments in the store as its own.

    Args:
        names: journal names, in any order; equal ones do not conflict.

    Returns: (prefix, the name below it), the first pair in order of names, or None.

    >>> conflicting_prefix(["foo/bar", "foobar", "foo"])
    ('foo', 'foo/bar')
    """
    known = set(names)
    for name in sorted(known):
        slash = name.find("/")
        while slash != -1:
            if name[:slash] in known:
                return name[:slash], name
            slash = name.find("/", slash + 1)
    return None


_Args = ParamSpec("_Args")


def check_field(
    context: str, check: Callable[_Args, object], *args: _Args.args, **kwargs: _Args.kwargs
) -> None:
    """Run a check of a field, so that its error names the field: ``<context>.<inner>: …``.

    Raises: ValidationError: of the check, within `context`.
    """
    try:
        check(*args, **kwargs)
    except ValidationError as err:
        raise err.within(context) from None
