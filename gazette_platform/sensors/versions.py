"""Data versions of Dagster's partitions: text that changes exactly when what queries read does."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gazette_platform.lake.times import TimeAccount

__all__ = ["DATA_VERSION", "data_version"]

DATA_VERSION: Final = "dagster/data_version"
_TAG_CHARACTERS_MAX = 63


def data_version(account: TimeAccount) -> str:
    """The covered offsets; or a digest of them where they are of several journals, or more than Dagster has room for."""
    text = account.data_version
    if not text:
        return "empty"
    if len(text) <= _TAG_CHARACTERS_MAX:
        return text.replace(" ", "_")
    return hashlib.sha256(text.encode()).hexdigest()[:32]
