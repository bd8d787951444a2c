"""Recovery logs: the files of a directory, kept in a journal.

A *recorder* appends every operation on the files to a journal of content-type
`application/x-gazette-recoverylog`; a *player* reads it and has the same files. An operation is of an
*fnode*, a file by the sequence number that created it, which may have several links. *Hints* name the
live fnodes and the segments of the log that made them, so that dead parts are neither read nor kept.

Operations are numbered, and each carries the checksum of all before it: of several recorders that write
at the same time every reader follows the same one. A player takes a log over by a no-op of a new
*author*, whose name it puts into the registers of the journal; appends of others are refused then.

Each operation costs a frame of some 40 bytes and its content. `Fsm`, `Recording`, `Playback` and the
rules of pruning decide, and do no I/O; `Recorder` and `Player` carry it out. Formats are Gazette's.
"""

from __future__ import annotations

from typing import Final

from gazette_platform.consumer.recoverylog.fsm import (
    Fsm,
    LiveFnode,
    Verdict,
    author_label,
    encode_op,
    extend_checksum,
)
from gazette_platform.consumer.recoverylog.hints import (
    FnodeSegments,
    FsmHints,
    LogNeeds,
    Property,
    Segment,
    SegmentSet,
    ShardHints,
    judge_fragment,
    merge_segments,
    needs_of,
    pick_hints,
)
from gazette_platform.consumer.recoverylog.playback import Playback
from gazette_platform.consumer.recoverylog.player import Played, Player
from gazette_platform.consumer.recoverylog.recorder import Recorder, new_author
from gazette_platform.consumer.recoverylog.recording import Recording, author_registers

__all__ = [
    "CONTENT_TYPE",
    "FnodeSegments",
    "Fsm",
    "FsmHints",
    "LiveFnode",
    "LogNeeds",
    "Playback",
    "Played",
    "Player",
    "Property",
    "Recorder",
    "Recording",
    "Segment",
    "SegmentSet",
    "ShardHints",
    "Verdict",
    "author_label",
    "author_registers",
    "encode_op",
    "extend_checksum",
    "judge_fragment",
    "merge_segments",
    "needs_of",
    "new_author",
    "pick_hints",
]

CONTENT_TYPE: Final = "application/x-gazette-recoverylog"
"""Label that journals of recovery logs have to have."""
