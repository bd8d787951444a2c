"""URLs of fragment stores."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "STORE_SCHEMES",
    "STORE_URL_LENGTH_MAX",
    "StoreUrl",
    "is_nameable",
    "parse_store_url",
    "validate_store_url",
]

STORE_URL_LENGTH_MAX: Final = 2048
"""Characters; a path of a file system has 4096 bytes, which hold a journal's name, too."""

_BUCKET_SCHEMES = frozenset({"s3", "gs", "azure"})
STORE_SCHEMES = _BUCKET_SCHEMES | {"azure-ad", "file", "hdfs"}
"""Those of Gazette, and ``hdfs``, which its brokers refuse."""

# What the host of a URL names, where it is not a bucket.
_HOSTS = {"azure-ad": "tenant", "hdfs": "namenode"}

# Control characters, surrogates, and separators of lines and paragraphs.
_CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})

# azure-ad://tenant/account/container/ has two segments at least.
_AZURE_AD_SEGMENTS_MIN = 2


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's URL in parts."""

    scheme: str
    host: str
    """Bucket, container, tenant or NameNode; empty for ``file``."""
    path: str
    """Begins and ends with a slash."""
    args: Mapping[str, str] = field(hash=False)
    """Settings of the driver, as written; what they mean is up to the driver."""
    text: str = field(compare=False)
    """The whole URL as given, which is the identity of a store."""

    @property
    def prefix(self) -> str:
        """Prefix of object keys: the path without its leading slash."""
        return self.path.removeprefix("/")


@lru_cache(1024)
def parse_store_url(url: str) -> StoreUrl:
    """Parse and validate the URL of a fragment store.

    Raises: ValidationError: says what is wrong with which URL.
    """
    if len(url) > STORE_URL_LENGTH_MAX:
        raise ValidationError(
            f"URL of {len(url)} characters is too long (at most {STORE_URL_LENGTH_MAX})"
        )
    try:
        parts = urlsplit(url)
        args = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as err:
        raise ValidationError(f'parse "{url}": {err}') from None
    if " " in url or not is_nameable(url):
        raise ValidationError(f'parse "{url}": invalid blank or control character in URL')
    if not parts.scheme:
        raise ValidationError(f"not absolute ({url})")
    path = unquote(parts.path)
    if not path.endswith("/"):
        raise ValidationError(f"path component doesn't end in '/' ({url})")
    if ".." in path.split("/"):
        raise ValidationError(f"path must not have a '..' segment ({url})")
    if not is_nameable(path) or not all(is_nameable(name + value) for name, value in args):
        raise ValidationError(f"encoded control character in URL ({url})")
    if parts.scheme not in STORE_SCHEMES:
        raise ValidationError(f"invalid scheme ({parts.scheme})")
    _validate_location(url, parts.scheme, parts.netloc, path)
    settings: dict[str, str] = {}
    for name, value in args:
        if name in settings:
            raise ValidationError(f"query argument {name} is given twice ({url})")
        settings[name] = value
    return StoreUrl(parts.scheme, parts.netloc, path, MappingProxyType(settings), url)


def is_nameable(text: str) -> bool:
    """Whether every character may be in a name that people and systems see.

    Control characters and halves of surrogate pairs may not: systems refuse some of them, and the
    others break lines of logs.
    """
    return text.isprintable() or not any(unicodedata.category(c) in _CONTROLS for c in text)


def _validate_location(url: str, scheme: str, host: str, path: str) -> None:
    if scheme == "file":
        if host:
            raise ValidationError(f"file scheme cannot have host ({url})")
    elif not host:
        missing = _HOSTS.get(scheme, "bucket")
        raise ValidationError(f"missing {missing} ({url})")
    elif scheme == "azure-ad" and len(path.strip("/").split("/")) < _AZURE_AD_SEGMENTS_MIN:
        raise ValidationError(f"missing account or container ({url})")


def validate_store_url(url: str) -> None:
    """Check the URL of a fragment store.

    Raises: ValidationError.
    """
    parse_store_url(url)
