"""What must never happen, whatever was sent.

Each judge says what is wrong, or an empty string. None of them knows what an input was meant to do:
a broker may refuse or serve it, as long as it lives, stays small, and says so in order.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.testing.waiting import block_for
from tests.fuzz.arena import MARKS
from tests.fuzz.http2 import answer_problem, goaway_code
from tests.harness import Late

if TYPE_CHECKING:
    from tests.fuzz.driver import Answer

__all__ = ["GROWTH_MB_MAX", "PEAK_MB_MAX", "LogWatch", "Memory", "judge"]

GROWTH_MB_MAX = 50.0
"""By how much a broker may be larger at the end."""
PEAK_MB_MAX = 600.0
"""By how much it may be larger meanwhile: its budget of appends, what gRPC reads ahead for a hundred
streams that stall, decompressed blocks, and freed memory that it keeps."""

# Gazette answers a request that breaks a rule with UNKNOWN and the text of the rule, because that is
# what a plain Go error becomes. Its clients match the texts, and ours do too. No other UNKNOWN may come.
UNKNOWN_ALLOWED: tuple[str, ...] = (
    # Validation: the path of a field, and its rule.
    (
        r"(append stream: )?(Header|Journal|Selector|WatchResume|Changes\[\d+\]|CheckRegisters|UnionRegisters|"
        r"SubtractRegisters|Suspend|Proposal|Registers|FragmentStore|CheckDeletePrefix|Savepoint|Name)[.:]"
    ),
    # Validation of whole messages.
    (
        r"(append stream: )?invalid (Offset|EndOffset|BeginModTime|EndModTime|MinEtcdRevision|NextPageToken|"
        r"PageLimit|SignatureTTL|ContentDelta) \("
    ),
    r"(append stream: )?invalid number of labels of registers \(",
    r"(append stream: )?(un)?expected [A-Z][A-Za-z]+",
    r"DeprecatedJournal and Proposal.Journal mismatch",
    # Specs that send a journal to impossible offsets, and registers that are too long to keep.
    r"(broker [^ ]+: )?[^ ]+: it is said to go on at offset \d+, beyond ",
    r"(append stream: )?registers of the journal would take \d+ bytes \(",
    # The order of a stream's messages.
    r"append stream: (unexpected EOF|expected EOF after empty Content chunk)",
    r"append stream: register modification requires non-empty Append",
    r"expected first ReplicateRequest to have Header",
    r"(append stream: )?Error parsing message with type 'protocol\.\w+'",
    # Forged headers.
    r"request (Etcd ClusterId|ProcessId) doesn't match our own",
    # What etcd refuses to do, in its own words.
    r"etcd refuses: INVALID_ARGUMENT: etcdserver: (too many operations|duplicate key given)",
    # Names that would list each other's files.
    r"journal [^ ]+ would be a directory of journal ",
    r"fragments of [^ ]+ would lie at [^ ]+, and mix with those of another journal",
    r"fragment store [^ ]+ puts [^ ]+ where file systems do not \(",
    # A file of the store that is damaged. The text names the object and what is wrong with it.
    r"[^ ]+: reading [^ ]+: .*\((the object is damaged|it is truncated|restore the file)",
    r"[^ ]+: [^ ]+ ends \d+ bytes before its name says",
)

# grpc-go answers a message that is not protobuf with INTERNAL, and so do we.
INTERNAL_ALLOWED: tuple[str, ...] = (r"\w+: malformed message: ",)

_UNKNOWN = re.compile("|".join(f"(?:{text})" for text in UNKNOWN_ALLOWED), re.DOTALL)
_INTERNAL = re.compile("|".join(f"(?:{text})" for text in INTERNAL_ALLOWED))

_BAD_LINES = (
    b"Traceback (most recent call last)",
    b"Fatal Python error",
    b"was never awaited",
    b"exception was never retrieved",
    b"Exception ignored in",
    b" CRITICAL ",
    b"Segmentation fault",
)


def judge(answer: Answer) -> str:
    """What is wrong with an answer."""
    problem = _leak_in(answer)
    if problem:
        return problem
    match answer.kind:
        case "rpc":
            return _judge_rpc(answer)
        case "http":
            return _judge_http(answer)
        case "h2":
            return _judge_h2(answer)
        case "parse" if answer.code in {"slow", "broken"}:
            return f"parser {answer.step['target']} is {answer.code}: {answer.text}"
        case "twin" if answer.code == "differs":
            return f"a hidden journal differs from one that does not exist: {answer.text}"
    return ""


def _judge_rpc(answer: Answer) -> str:
    method = answer.step["method"]
    if answer.code == "UNKNOWN" and not _UNKNOWN.match(answer.text):
        return f"{method} answers UNKNOWN: {answer.text[:500]}"
    if answer.code == "INTERNAL" and not _INTERNAL.match(answer.text):
        return f"{method} answers INTERNAL: {answer.text[:500]}"
    return ""


def _judge_http(answer: Answer) -> str:
    if answer.code == "500":
        return f"HTTP answers 500: {answer.text[:500]}"
    return ""


def _judge_h2(answer: Answer) -> str:
    problem = answer_problem(answer.body)
    if problem:
        return f"HTTP/2: {problem}"
    code = goaway_code(answer.body)
    if code and answer.code == "open":
        return Late(f"HTTP/2: GOAWAY has the error {code}, and the connection stays open")
    return ""


def _leak_in(answer: Answer) -> str:
    step = answer.step
    if step.get("token") == "all" or b"{TOKEN:all}" in step.get("raw", b""):
        return ""  # the operator may see all
    said = answer.body + answer.text.encode(errors="replace")
    for mark in MARKS:
        if mark in said:
            return f"{mark.decode()} of a hidden journal is shown to a token without rights to it"
    asked = b"".join(step.get("messages", [])) + step.get("raw", b"")
    if b"/debug/" in asked:
        return ""  # this page shows everything, unless it is made private
    if b"kobold" in said and b"kobold" not in asked and step["do"] in {"rpc", "http"}:
        return "the name of a hidden journal is shown to a token without rights to it"
    return ""


@final
class LogWatch:
    """Looks at what was added to a log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.tracebacks = 0

    def problem(self) -> str:
        """What is wrong in what came since the last call, with the lines around it."""
        with self._path.open("rb") as log:
            log.seek(self._at)
            added = log.read()
        self._at += len(added)
        for bad in _BAD_LINES:
            found = added.find(bad)
            if found >= 0:
                self.tracebacks += added.count(_BAD_LINES[0]) or 1
                begin = added.rfind(b"\n", 0, max(0, found - 2)) + 1
                return added[begin : found + 3000].decode(errors="replace")
        return ""


@final
class Memory:
    """The resident memory of a process, compared with its size once warm."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._warm_mb = 0.0
        self.peak_mb = 0.0
        self.is_warm = False

    def now_mb(self) -> float:
        """MB; 0 if it is gone, or has ended and was not waited for yet."""
        try:
            status = Path(f"/proc/{self._pid}/status").read_text()
        except OSError:
            return 0.0
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(resident[1]) / 1024 if resident else 0.0

    def warm(self) -> None:
        """Count growth from now on."""
        self._warm_mb, self.is_warm = self.now_mb(), True

    def growth_mb(self) -> float:
        """How many MB larger it is than once warm."""
        return self.now_mb() - self._warm_mb

    def problem(self) -> str:
        """What is wrong if it is larger than it may be even for a moment; "" if it is not."""
        if not self.is_warm:
            return ""
        growth = self.growth_mb()
        self.peak_mb = max(self.peak_mb, growth)
        if growth > PEAK_MB_MAX:
            return f"its memory grew by {growth:.0f} MB"
        return ""

    def settle(self, *, timeout_s: float) -> float:
        """Wait until it is small again. Returns: MB that it did not give back."""
        deadline = time.monotonic() + timeout_s
        while (growth := self.growth_mb()) > GROWTH_MB_MAX * 0.8 and time.monotonic() < deadline:
            block_for(0.25)
        return growth
