"""Finds the spools that a process which has ended left, and says how much of them can be believed.

As long as the machine runs, all that a process wrote exists, however the process ended. After a power
failure only content counts that was synced, or that a digest proves. A torn record does not count, and
content after the end of a record was never committed. A file that single others are missing beside is
kept: the log says what it is, and what is missing.

Copies of a home prove nothing: their original may have gone on. One that is made file by file is known by where
it lies (see `files.place_of`). Nothing reveals one that was made block by block, of a whole disk; but names of
homes are random, and it keeps its name: each broker says in etcd which homes it holds, so of a home that two of
them hold, one is a copy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from gazette_platform.broker.etcd_records import own_member_key, own_members_prefix
from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.disk import (
    COMPRESS_BATCH_BYTES,
    SpoolFile,
    make_private,
    read_block,
    read_small,
    remove_fragment,
    write_new,
)
from gazette_platform.broker.spool.tenure import Tenure
from gazette_platform.protocol import ZERO_SUM, Fragment, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gazette_platform.broker.epochs import EpochRecord
    from gazette_platform.broker.spool.head_records import FragmentState, Record, TenureHeader
    from gazette_platform.broker.spool.home import SpoolHome
    from gazette_platform.broker.spool.spool import Digest
    from gazette_platform.etcd import KeyValue
    from gazette_platform.protocol import ProcessId

_log = logging.getLogger(__name__)

# Names of files that are ours; all others in the folder are left alone.
_OURS: Final = re.compile(r"[0-9a-f]+\.[1-9][0-9]{0,17}\.(content|sealed|gone)", re.ASCII)
_DAMAGE: Final = (OSError, ValueError, TypeError, KeyError)


@dataclass(slots=True, eq=False)
class RecoveredFragment:
    """Content that was committed, and is intact."""

    file: SpoolFile
    """Held once, by this object."""
    state: FragmentState
    sha: Digest
    """Of all of the content."""

    def below(self, to: int) -> RecoveredFragment:
        """The content below an offset within it, with one more hold on the file. For a thread.

        Raises: OSError.
        """
        sha: Digest = hashlib.sha1(usedforsecurity=False)
        _hash(self.file.fd, sha, 0, to - self.state.begin)
        return RecoveredFragment(self.file.hold(), self.state._replace(end=to), sha)

    def contradicts(self, stored: Fragment) -> bool:
        """Whether a store's fragment has, or may have, other bytes at offsets of this one. For a thread.

        It does no harm if the store's fragment goes further on either side: readers take that one.

        Raises: OSError.
        """
        begin, end = self.state.begin, self.state.end
        if stored.end <= begin or end <= stored.begin:
            return False
        if begin <= stored.begin and stored.end <= end:
            sha: Digest = hashlib.sha1(usedforsecurity=False)
            _hash(self.file.fd, sha, stored.begin - begin, stored.end - begin)
            return sha.digest() != stored.sum
        return begin < stored.begin or stored.end < end  # only the store could say

    def fragment(self, journal: str) -> Fragment:
        """Its span and sum."""
        state = self.state
        total = self.sha.digest() if state.end > state.begin else ZERO_SUM
        return Fragment(journal, state.begin, state.end, total, state.codec)


@dataclass(frozen=True, slots=True)
class Torn:
    """A file with more recorded content than can be believed."""

    path: Path
    begin: int
    end: int
    """Journal offset, as recorded; 0: nothing is known."""
    why: str


@final
@dataclass(slots=True, eq=False)
class RecoveredTenure:
    """What is left of a tenure whose process has ended, or whose journal has left its broker."""

    tenure: Tenure
    process: str
    """The broker that it belonged to."""
    end: int
    """End of the journal, as recorded."""
    registers: LabelSet
    """As of `end`."""
    is_whole: bool
    """Whether `end` and `registers` cover all that was acknowledged, and no content is torn."""
    fragments: list[RecoveredFragment] = field(default_factory=list)
    """In the order in which they begin."""
    torn: list[Torn] = field(default_factory=list)
    is_end_known: bool = True
    """Whether the tenure never went further than `end`."""
    is_copied: bool = False
    """Whether it was found in a copy of its home."""
    knows_registers: bool = True
    """Whether `registers` could be read."""

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Spans below `end`, after the first content, that are not here: a store has them, or they are lost."""
        joints = [(one.state.begin, one.state.end) for one in self.fragments]
        joints += [(one.begin, one.end) for one in self.torn if one.end > 0]
        joints = [*sorted(joints), (self.end, self.end)] if joints else []
        return [(end, begin) for (_, end), (begin, _) in itertools.pairwise(joints) if end < begin]

    def release(self) -> None:
        """Let go of all content, which removes its files."""
        for fragment in self.fragments:
            fragment.file.release()
        self.fragments = []


def recover(home: SpoolHome) -> list[RecoveredTenure]:
    """Read a home that was taken over. For a thread: it reads all content.

    Blocks without a record are given back, and drafts that were never committed are removed: but not of
    a copy, for which they may have been committed while it was made.

    Raises: OSError: the home cannot be read.
    """
    by_tenure: defaultdict[str, list[Path]] = defaultdict(list)
    with os.scandir(home.folder) as entries:
        for entry in entries:
            # No links: what they lead to is not ours to store, or to remove.
            if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                by_tenure[entry.name.partition(".")[0]].append(home.folder / entry.name)
    found = []
    for block, header in list(home.blocks()):
        one = _recover(home, block, header, by_tenure.pop(header.tenure, []))
        if one is not None:
            found.append(one)
    if by_tenure:  # reported once: there may be any number of them
        paths = [path for paths in by_tenure.values() for path in paths]
        what = "%d files stay, since their journals are unknown, such as %s"
        _log.error(what, len(paths), min(paths))
    if home.syncs_names:
        home.sync_all()  # a former process may have left that to the kernel
    return found


def _recover(
    home: SpoolHome, block: int, header: TenureHeader, paths: list[Path]
) -> RecoveredTenure | None:
    assert home.former is not None
    slots = home.slots(block)
    records = [head_records.decode_record(slot) for slot in slots]
    is_torn = any(record is None and any(slot) for record, slot in zip(records, slots, strict=True))
    latest = max((r for r in records if r is not None), key=lambda r: r.number, default=None)
    ordinals = sorted({int(path.name.split(".")[1]) for path in paths})
    tenure = Tenure.recovered(
        home,
        header,
        block,
        latest,
        ordinal=max(ordinals, default=0),
        was_durable=any(record.state.is_durable for record in records if record is not None),
    )
    if latest is None and not paths:
        tenure.leave()  # it was reported to no one
        return None
    found = RecoveredTenure(
        tenure,
        home.former.process,
        0,
        LabelSet(),
        is_whole=False,
        is_end_known=False,
        is_copied=home.is_copied,
        knows_registers=False,
    )
    states, boot = _sealed_states(found, ordinals), home.boot_mark
    if latest is not None:
        _take_head(found, latest, states, boot)
        if found.is_copied and latest.ordinal and latest.state.end <= latest.state.begin:
            del states[latest.ordinal]  # its content may have come since
        is_torn = is_torn and _is_of_boot(latest.state, boot)
        if is_torn:
            # The end of a process tears no record: as long as the machine runs, a write within a slot
            # is either there or not. So the disk is damaged, and maybe the newer record is lost, of
            # which was reported.
            _log.error("%s: a record of its end is torn, maybe the last one", header.journal)
            found.is_whole = found.is_end_known = False
    elif states:
        # It went this far at least. Content behind `end` would stay in the spool for ever.
        furthest = max(states.values(), key=lambda state: state.end)
        found.end, found.registers, found.knows_registers = furthest.end, furthest.registers, True
    # A file whose record is empty is a draft that was never committed. After a power failure it may also
    # be a file whose record is lost, unless each record was on disk before the next.
    is_recorded = latest is not None and _is_of_boot(latest.state, boot) and not is_torn
    is_draft = is_recorded and not found.is_copied
    drafts, orphans = [], []
    named = {torn.path for torn in found.torn}
    for ordinal in sorted({*ordinals, *states}):
        path = tenure.path(ordinal, "content")
        if ordinal in states:
            _take_content(found, path, states[ordinal], ordinal, boot)
        elif path in named:
            continue
        elif path.with_suffix(".gone").exists() or not _has_content(path):
            remove_fragment(path)
        elif is_draft and not path.with_suffix(".sealed").exists():
            # No process leaves that: the record is made before the content, and removed after it.
            orphans.append(_orphan(path, ordinal, states, found.end))
        elif is_draft:
            remove_fragment(path)
        else:
            drafts.append(Torn(path, 0, 0, "no record of it is left"))
    found.torn += orphans
    found.fragments.sort(key=lambda one: one.state.begin)
    is_durable = latest is not None and latest.state.is_durable
    found.is_whole = found.is_whole and not found.torn and (is_durable or not drafts)
    found.torn += drafts
    return found


def _is_of_boot(state: FragmentState, boot: bytes) -> bool:
    """Whether the machine has run ever since it was recorded, by whatever process."""
    return state.boot == boot and any(boot)


def _sealed_states(found: RecoveredTenure, ordinals: list[int]) -> dict[int, FragmentState]:
    """What is recorded beside closed fragments, by the numbers of their files."""
    states = {}
    for ordinal in ordinals:
        try:
            sealed = _sealed(read_small(found.tenure.path(ordinal, "sealed")))
        except FileNotFoundError:
            continue
        except _DAMAGE as err:
            path = found.tenure.path(ordinal, "content")
            found.torn.append(Torn(path, 0, 0, f"its record cannot be read: {err}"))
        else:
            if sealed is not None:
                states[ordinal] = sealed
    return states


def _orphan(path: Path, ordinal: int, states: dict[int, FragmentState], end: int) -> Torn:
    """Describe content without its record. It lies between its neighbours, if it fits there."""
    size = path.stat().st_size
    to = min((state.begin for n, state in states.items() if n > ordinal), default=end)
    below = [state.end for n, state in states.items() if n < ordinal]
    # Names say nothing of offsets. If the file is as long as the gap between its neighbours, it is
    # that gap.
    begin = max(below) if below else to - size
    if begin < 0 or begin + size != to:
        begin = to = 0
    return Torn(path, begin, to, "its record is missing")


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _take_head(
    found: RecoveredTenure, latest: Record, states: dict[int, FragmentState], boot: bytes
) -> None:
    """Take the latest record as far as it can be believed; it is of the open fragment."""
    state = latest.state
    found.end = state.end
    found.is_whole = found.is_end_known = state.is_durable or _is_of_boot(state, boot)
    try:
        raw = latest.registers
        if latest.has_overflow:
            tenure = found.tenure
            path = tenure.folder / f"{tenure.id}.registers.{latest.number & 1}"
            raw = _checked(read_small(path), latest.registers)
        found.registers = head_records.decode_registers(raw)
        found.tenure.knows(found.registers)
        found.knows_registers = True
    except _DAMAGE as err:
        _log.error("%s: its registers are lost: %s", found.tenure.journal, err)
        # Its content may be complete, but a primary with wrong registers would let a fenced writer
        # append.
        found.is_whole = False
    if latest.ordinal:
        # The file may be sealed already, if no other could be begun. This record says as much, or more.
        path = found.tenure.path(latest.ordinal, "content")
        found.torn = [torn for torn in found.torn if torn.path != path]
        states[latest.ordinal] = state._replace(registers=found.registers)


def _sealed(raw: bytes) -> FragmentState | None:
    """What is recorded of a closed fragment; None: it is open. Raises: ValueError: the record is torn."""
    if not any(raw):
        return None
    record = head_records.decode_record(raw)
    if record is None:
        raise ValueError("torn")
    registers = record.registers
    if record.has_overflow:
        registers = _checked(raw[len(record.raw) :], registers)
    return record.state._replace(registers=head_records.decode_registers(registers))


def _checked(raw: bytes, crc: bytes) -> bytes:
    if head_records.stand_in(raw) != crc:
        raise ValueError("torn registers")
    return raw


def _take_content(
    found: RecoveredTenure, path: Path, state: FragmentState, ordinal: int, boot: bytes
) -> None:
    """Take the content of a fragment as far as it can be believed."""
    begin, end = state.begin, state.end
    if end <= begin:
        remove_fragment(path)
        return
    try:
        fd = _open(path)
    except OSError as err:
        found.torn.append(Torn(path, begin, end, f"its content is lost: {err}"))
        return
    # While the machine runs, what a process wrote is in the page cache, however the process ended.
    # After a restart only what was synced is known to exist.
    is_kept = state.is_durable or _is_of_boot(state, boot)
    try:
        believed_to, sha, why = _believe(fd, state, is_kept=is_kept)
    except OSError as err:
        os.close(fd)
        found.torn.append(Torn(path, begin, end, f"its content cannot be read: {err}"))
        return
    if why:
        found.torn.append(Torn(path, begin, end, why))
    if believed_to == begin:
        os.close(fd)
        return
    tenure = found.tenure
    file = tenure.keep(SpoolFile(None, begin, fd=fd, ordinal=ordinal, forget=tenure.forget))
    state = state._replace(end=believed_to)
    found.fragments.append(RecoveredFragment(file, state, sha))


def _believe(fd: int, state: FragmentState, *, is_kept: bool) -> tuple[int, Digest, str]:
    """How much of a file's content is as it was.

    Returns: up to which offset; the digest of that; and why no further. Raises: OSError.
    """
    begin, synced_to, proved_to = state.begin, state.synced_to, state.digested_to
    to = state.end if is_kept else max(synced_to, proved_to)
    sha: Digest = hashlib.sha1(usedforsecurity=False)
    if os.fstat(fd).st_size < to - begin:
        why = "it is shorter than recorded"
    else:
        _hash(fd, sha, 0, proved_to - begin)
        # The digest proves the beginning. The rest up to the record's end is believed, because it
        # was synced or the machine has run since.
        if proved_to == begin or sha.digest() == state.digest:
            _hash(fd, sha, proved_to - begin, to - begin)
            left = f"nothing proves its content from {to} on, since the machine was restarted"
            return to, sha, left if to < state.end else ""
        why = "its digest differs"
    sha = hashlib.sha1(usedforsecurity=False)
    # A power failure takes what was not synced, though the digest of it was recorded.
    is_there = not is_kept and synced_to < proved_to and os.fstat(fd).st_size >= synced_to - begin
    if not is_there:
        return begin, sha, why
    _hash(fd, sha, 0, synced_to - begin)
    return synced_to, sha, why


def _open(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:  # the fragment is closed, and its file read-only
        return os.open(path, os.O_RDONLY | flags)


def _hash(fd: int, sha: Digest, at: int, to: int) -> None:
    """Hash the bytes [at, to) of a file. Raises: OSError: they are not there."""
    while at < to:
        block = read_block(fd, at, min(to - at, COMPRESS_BATCH_BYTES))
        sha.update(block)
        at += len(block)


SET_ASIDE: Final = "set-aside"


class _Found(Protocol):
    """A tenure that a process left."""

    tenure: Tenure
    process: str
    registers: LabelSet


def set_aside(
    spool_dir: Path, found: _Found, path: Path, *, begin: int, end: int, why: str
) -> Path:
    """Give a file of content a second name, where nothing is deleted, with a description beside it.

    Args:
        spool_dir: below which files are set aside.
        found: the tenure that it belongs to.
        path: of the content; it may be gone, and only its record left.
        begin: journal offset of its first byte.
        end: as recorded; 0: not known.
        why: for whoever finds it.

    Returns: where the description is.
    Raises: OSError.
    """
    folder = spool_dir / SET_ASIDE
    folder.mkdir(mode=0o700, exist_ok=True)
    make_private(folder)
    said = {
        "journal": found.tenure.journal,
        "create_revision": found.tenure.create_revision,
        "begin": begin,
        "end": end,
        "registers": found.registers.pairs(),
        "broker": found.process,
        "tenure": found.tenure.id,
        "why": why,
    }
    # Copies of a home have files of the same names, with other content. Neither may take the
    # other's place.
    names = (f"{path.stem}.{number}{path.suffix}" for number in itertools.count(1))
    places = (folder / name for name in itertools.chain([path.name], names))
    target = next(place for place in places if _is_free(place, path, said))
    description = target.with_suffix(".json")
    # A second name, not a copy: it costs nothing on a full disk, and a crash in between leaves
    # both.
    if path.exists() and not target.exists():
        os.link(path, target)
    if not description.exists():
        write_new(description, f"{json.dumps(said, indent=2)}\n".encode())
    return description


def _is_free(target: Path, path: Path, said: dict[str, Any]) -> bool:
    """Whether a place has nothing yet, or has this very file already. Raises: OSError."""
    description = target.with_suffix(".json")
    if path.exists():
        return target.samefile(path) if target.exists() else not description.exists()
    if not description.exists():
        return not target.exists()
    try:
        former = json.loads(description.read_bytes())
    except ValueError:
        return False
    return isinstance(former, dict) and all(
        former.get(name) == said[name] for name in ("tenure", "begin", "end")
    )


# ------------------------------------------------------------------- homes that others hold, too
def say_homes(homes: Iterable[SpoolHome]) -> bytes:
    """What a member says of the homes that it holds; not of copies, which prove nothing."""
    return "\n".join(home.folder.name for home in homes if not home.is_copied).encode()


@final
class OtherHomes:
    """The homes that living brokers other than this one say they hold. Brokers of Gazette say nothing."""

    def __init__(self, prefix: str, own: ProcessId) -> None:
        self._prefix = prefix
        self._own = own
        self._logged: set[Path] = set()

    def doubled(
        self,
        record: EpochRecord | None,
        found: Iterable[RecoveredTenure],
        members: Iterable[KeyValue],
    ) -> set[RecoveredTenure]:
        """Return those of the tenures found here that another broker has, too.

        If etcd says that this broker is the holder, it goes on: it is not the one that came later.

        Args:
            record: what etcd has of their journal.
            found: the tenures.
            members: the brokers of this project, read after `record`.
        """
        others = self._others(members)
        holders = record.holders if record is not None else ()
        ours = {one.tenure for one in holders if one.process == self._own}
        doubled = set()
        for one in found:
            folder = one.tenure.folder
            # Names of homes are random, so two brokers with one name share an origin. Which of them
            # is the copy cannot be seen, so neither acts unless etcd names it.
            if folder.name in others and not one.is_copied and one.tenure.id not in ours:
                self._log_once(folder, others[folder.name])
                doubled.add(one)
        return doubled

    def _others(self, members: Iterable[KeyValue]) -> dict[str, str]:
        """Return the owner of each home, by the home's name."""
        prefix = own_members_prefix(self._prefix)
        ours = own_member_key(self._prefix, self._own)
        return {
            name: kv.key.removeprefix(prefix)
            for kv in members
            if kv.key != ours
            for name in kv.value.decode(errors="replace").split()
        }

    def _log_once(self, folder: Path, who: str) -> None:
        if folder not in self._logged:
            self._logged.add(folder)
            _log.error(
                "%s: broker %s, which is alive, says that it has this folder, too; one of the two is a copy, "
                "and what this one says of journals is kept, and neither served nor stored (stop the broker "
                "that runs on the copy, and move the copy away)",
                folder,
                who,
            )
