"""Where the fragments of a journal lie: folders that can be compared across URLs of stores.

Two URLs may mean one folder (``file:///a/`` and ``file:////a/``), and `find` and `replace` put a
journal under any name. A *place* is a text in which a folder begins with the folders above it.
"""

from __future__ import annotations

from typing import Final

from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.protocol import StoreUrl, parse_store_url
from gazette_platform.stores.prefix import KeyRule

__all__ = ["folders_of", "journal_place", "rewritten_name", "store_place"]

# Bytes of one name, and of a path, which leaves room for the file root, a postfix and a fragment's name.
_SEGMENT_BYTES_MAX: Final = 255
_FOLDER_BYTES_MAX: Final = 2560

# Folders that brokers and the lake keep for themselves beside journals.
_RESERVED: Final = (".test", ".covered", ".gazette", ".partial")


def store_place(url: str, *, file_only: bool = False) -> str:
    """The folder of a store itself.

    >>> store_place("file:////a//b/"), store_place("s3://bucket/?region=x")
    ('file:///a/b/', 's3://bucket/')

    Args:
        file_only: whether brokers take every URL for the file root (`--broker.file-only`).

    Raises: ValidationError: no URL of a store.
    """
    parsed = _parse(url, file_only=file_only)
    return _root(parsed) + _normal(parsed.prefix)


def journal_place(
    url: str, journal: str, *, postfix: str | None = None, file_only: bool = False
) -> str:
    """The folder that holds all fragments of a journal in a store, and nothing else.

    >>> journal_place("file:///data/?find=mine/&replace=ours/", "mine/one")
    'file:///data/ours/one/'

    Args:
        postfix: as `KeyRule.directory` has it.

    Raises: ValidationError: no URL of a store, or none that keeps the journal in one folder.
    """
    parsed = _parse(url, file_only=file_only)
    try:
        key = _rule(parsed).directory(journal, postfix=postfix)
    except StoreError as err:
        raise ValidationError(f"fragment store {url}: {err}") from None
    place = _normal(key)
    if any(part.startswith(_RESERVED) for part in place.split("/")):
        raise ValidationError(f"fragment store {url} puts {journal} into a folder of brokers' own")
    if parsed.scheme == "file":
        # Else appends would be taken, and never persisted.
        longest = max(len(part.encode()) for part in place.split("/"))
        if longest > _SEGMENT_BYTES_MAX or len(place.encode()) > _FOLDER_BYTES_MAX:
            raise ValidationError(
                f"fragment store {url} puts {journal} where file systems do not (names have "
                f"{_SEGMENT_BYTES_MAX} bytes at most, folders of journals {_FOLDER_BYTES_MAX})"
            )
    return _root(parsed) + place


def rewritten_name(
    url: str, journal: str, *, postfix: str | None = None, file_only: bool = False
) -> str:
    """The name under which a store keeps a journal: its own, unless `find` rewrites it.

    Raises: ValidationError: as `journal_place`.
    """
    parsed = _parse(url, file_only=file_only)
    try:
        rule = KeyRule.of("", _arguments(parsed))
        return _normal(rule.directory(journal, postfix=postfix)).removesuffix("/")
    except StoreError as err:
        raise ValidationError(f"fragment store {url}: {err}") from None


def folders_of(place: str) -> list[str]:
    """The folders above a place, outermost first.

    >>> folders_of("file:///a/b/")
    ['file:///', 'file:///a/']
    """
    end = place.index("/", place.index("://") + len("://")) + 1
    folders = []
    while end < len(place):
        folders.append(place[:end])
        end = place.index("/", end) + 1
    return folders


def _parse(url: str, *, file_only: bool) -> StoreUrl:
    parsed = parse_store_url(url)
    if file_only:
        return StoreUrl(scheme="file", host="", path="/", args={}, text=url)
    return parsed


def _root(url: StoreUrl) -> str:
    # Another endpoint is another service, whose bucket of the same name is a different one.
    endpoint = _arguments(url).get("endpoint", "").replace("/", "|")
    return f"{url.scheme}://{url.host}{endpoint and '@'}{endpoint}/"


def _rule(url: StoreUrl) -> KeyRule:
    return KeyRule.of(url.prefix.lstrip("/"), _arguments(url))


def _arguments(url: StoreUrl) -> dict[str, str]:
    return {name.lower(): value for name, value in url.args.items()}


def _normal(key: str) -> str:
    """A key as a path without empty and ``.`` segments: "" or ends in a slash."""
    return "".join(f"{part}/" for part in key.split("/") if part not in ("", "."))
