"""Records in journals: framings, and the mapping of records to journals."""

from __future__ import annotations

from gazette_platform.client.records import split_lines
from gazette_platform.message.framing import FIXED_MAGIC, FRAME_BYTES_MAX, frame_fixed, split_fixed
from gazette_platform.message.mapping import fnv1a32, modulo, rendezvous

__all__ = [
    "FIXED_MAGIC",
    "FRAME_BYTES_MAX",
    "fnv1a32",
    "frame_fixed",
    "modulo",
    "rendezvous",
    "split_fixed",
    "split_lines",
]
