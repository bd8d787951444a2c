"""Data versions of Hive partitions: text that changes exactly when what queries read does."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gazette_platform.lake.partition_state import PartitionState

__all__ = ["DATA_VERSION", "data_version"]

DATA_VERSION: Final = "dagster/data_version"
_TAG_CHARACTERS_MAX = 63


def data_version(state: PartitionState) -> str:
    """The covered offsets, or a digest of them where Dagster has no room for so many."""
    text = state.data_version
    if not text:
        return "empty"
    if len(text) <= _TAG_CHARACTERS_MAX:
        return text.replace(" ", "_")
    return hashlib.sha256(text.encode()).hexdigest()[:32]
