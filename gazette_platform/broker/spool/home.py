"""Where spools live on disk, so that they survive the process: homes, and the tenures in them.

A *home* is a folder that one process holds, by a lock on the folder itself. However the process ends,
the lock is free then, and the next process takes over the home with all that is in it.

    <spool-dir>/spools/<random>/home.json       whose it is
                                place           where it was made, see `place_of`: a copy is elsewhere
                                heads           a block for each tenure, see `head_records`
                                <tenure>.<number>.content    bytes of a fragment, from its begin
                                <tenure>.<number>.sealed     its last record, once it is closed
                                <tenure>.<number>.gone       that record, while the content is removed
                                <tenure>.registers.<0|1>     registers too long for a record

A *tenure* is one broker's holding of one journal. It ends when others hold what it held.

A home that was copied says of journals what was true when the copy was made, and its original may have
gone on. It goes on saying whose copy it is, and no tenure begins in it: so whoever finds it next sees a
copy, too. It may have been made of links, and while files came and went.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import operator
import os
import secrets
import stat
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.disk import (
    FILE_MODE,
    FOLDER_MODE,
    FULL,
    finish_closing,
    is_elsewhere,
    is_on_another_device,
    make_private,
    place_of,
    read_small,
    sync_folder,
    write_all,
    write_new,
    write_over,
)
from gazette_platform.broker.spool.head_records import BLOCK_BYTES, SLOT_BYTES, TenureHeader
from gazette_platform.broker.spool.tenure import Tenure
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

SPOOLS: Final = "spools"
_HOME: Final = "home.json"
_HEADS: Final = "heads"
# A file of its own: on a full disk home.json is written over, and the place may stay as it is, or be missing.
_PLACE: Final = "place"
# Ends home.json once the place is said. A copy may contain home.json before it contains the place.
_HAS_PLACE: Final = b"\n"
_VERSION: Final = 1
_ADVICE: Final = " (give --broker.spool-dir a folder of its own, on a local disk)"
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Id of this run of the machine. What was written during the run is at least in the machine's memory."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # unknown; treated as different from every other


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a home."""

    cluster: str
    """Id of the etcd cluster, with the prefix of the brokers' keys."""
    process: str
    """The broker's zone and suffix."""
    boot: str
    """As of `boot_id`."""
    lease: int = 0
    """Lease of its member key in etcd; 0: it has none yet."""

    @classmethod
    def found(cls, said: dict[str, Any]) -> Self:
        """Who held a home that was found. Raises: TypeError, ValueError: it does not say so."""
        owner = cls(**said)
        texts = (owner.cluster, owner.process, owner.boot)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{said} in place of an owner")
        if not owner.process.isprintable() or not 0 <= operator.index(owner.lease) < 1 << 63:
            raise ValueError(f"{said} in place of an owner")
        return owner

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has been running ever since."""
        return self.boot != "" and self.boot == boot_id()

    @property
    def boot_mark(self) -> bytes:
        """The boot as records have it; they outlast the owner of their home."""
        digest = hashlib.sha1(self.boot.encode(), usedforsecurity=False).digest()
        return digest[:8] if self.boot else bytes(8)


@final
class SpoolHome:
    """A folder of spools that this process holds. Safe in threads.

    Attributes:
        folder: where it is.
        former: its holder before this process; None: none.
        is_copied: whether it does not lie where it was made. Its original may be held by a process that is
            alive: the lock is on the folder, and a copy has its own.
        former_has_ended: whether its former process is known to have ended.
        tenures: the tenures in it, by their ids.
        boot_mark: that of its owner.
        history: id of etcd's data; empty: not known.
        syncs_names: whether files are brought to the disk itself before a record names them, as is
            needed if their content is brought there. It may be set at any time.
    """

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        *,
        former: Owner | None = None,
        has_place: bool = False,
        lock_fd: int = -1,
    ) -> None:
        """Use `make` or `free_homes`. Raises: OSError."""
        self.folder = folder
        self.syncs_names = False
        self.history = ""
        self.former = former
        self.is_copied = False
        self.former_has_ended = former is not None and former.is_of_this_boot
        self.tenures: dict[str, Tenure] = {}
        self._owner, self.boot_mark = owner, owner.boot_mark
        self._lock_fd = -1
        self._heads_fd = -1
        self._mutex = threading.Lock()
        self._syncing = threading.Lock()
        self._is_dirty = False
        self._failure: OSError | None = None
        self._blocks = 0
        self._free: list[int] = []
        if lock_fd >= 0:
            self._open(lock_fd, has_place=has_place)

    def _open(self, lock_fd: int, *, has_place: bool = False) -> None:
        path = self.folder / _HEADS
        had_heads = path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._heads_fd = os.open(path, flags, FILE_MODE)
        try:
            if self.former is not None:
                said = _said_place(self.folder)
                place = place_of(lock_fd, self._heads_fd if had_heads else None)
                self.is_copied = is_elsewhere(said, place, has_said=has_place)
                # The process that it names may be alive, on the disk that was copied. To end its
                # lease would end a broker that serves.
                if self.is_copied or is_on_another_device(said, place):
                    self.former_has_ended = False
            # A copy by hard links shares the file of records. Ours must not be written over by a
            # broker that lives.
            if (
                self.is_copied and os.fstat(self._heads_fd).st_nlink > 1
            ):  # the original writes there
                write_new(path, path.read_bytes())
                os.close(self._heads_fd)
                self._heads_fd = os.open(path, flags, FILE_MODE)
            self._find_free()
        except BaseException:
            os.close(self._heads_fd)
            self._heads_fd = -1
            raise
        self._lock_fd = lock_fd

    def _find_free(self) -> None:
        info = os.fstat(self._heads_fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{self.folder / _HEADS} is not a file")
        self._blocks = -(-info.st_size // BLOCK_BYTES)
        self._free = [at for at in range(self._blocks) if self.header(at) is None]

    @classmethod
    def make(cls, spool_dir: Path, owner: Owner) -> Self:
        """Make a new home.

        On a full disk the folder is made by the first tenure: a broker without room serves what it can.

        Args:
            spool_dir: may be shared with other brokers of this machine.
            owner: this process.

        Raises: SetupError: the home cannot be made.
        """
        base = spool_dir / SPOOLS
        home = cls(base / secrets.token_hex(8), owner)
        try:
            home._make()
        except OSError as err:
            if err.errno not in FULL:
                raise SetupError(f"cannot keep spools in {base}: {err}{_ADVICE}") from err
            _log.error("%s: %s; appends are refused until there is room", spool_dir, err)
        return home

    def _make(self) -> None:
        """Make the folder, unless it exists. Raises: OSError: call again."""
        if self._lock_fd >= 0:
            return
        base = self.folder.parent
        base.mkdir(mode=FOLDER_MODE, exist_ok=True)
        make_private(base)
        sync_folder(base.parent)
        lock_fd = None
        while lock_fd is None:
            self.folder = base / secrets.token_hex(8)
            self.folder.mkdir(mode=FOLDER_MODE)
            # Another broker that looks for free homes may lock it first, and remove it.
            # The lock is on the folder, and the kernel frees it however the process ends. A file
            # with a process id would have to be believed, and may outlive its process.
            lock_fd = _lock(self.folder)
        try:
            sync_folder(base)
            self._open(lock_fd)
            self.own(self._owner)
        except BaseException:
            if self._heads_fd >= 0:
                os.close(self._heads_fd)
            self._lock_fd = self._heads_fd = -1
            _remove(self.folder)
            os.close(lock_fd)
            raise

    def own(self, owner: Owner) -> None:
        """Record the owner; a copy goes on saying whose copy it is. Raises: OSError."""
        self._owner, self.boot_mark = owner, owner.boot_mark
        if self._lock_fd < 0 or self.is_copied:
            return  # `_make` will record it
        # The place first: home.json says whether there is one, so that a copy which was cut off
        # between the two is known as a copy.
        place = place_of(self._lock_fd, self._heads_fd)
        if _said_place(self.folder) != place:
            self._say(_PLACE, place.encode())
        said = json.dumps({"version": _VERSION, **asdict(owner)}).encode()
        self._say(_HOME, said + _HAS_PLACE if _said_place(self.folder) else said)
        os.fsync(self._lock_fd)

    def _say(self, name: str, said: bytes) -> None:
        path = self.folder / name
        try:
            write_new(path, said)
        except OSError as err:
            if err.errno not in FULL:
                raise
            if name == _PLACE:
                return  # what is said there holds still, and a home may be without
            if not path.exists():
                raise
            write_over(path, said)

    @property
    def owner(self) -> Owner:
        """Who holds it, which is this process."""
        return self._owner

    @property
    def process(self) -> str:
        """The broker that holds it: zone and suffix."""
        return self._owner.process

    # -------------------------------------------------------------------------------- blocks
    def header(self, block: int) -> TenureHeader | None:
        """The header of a block; None: the block is free, or its header is torn. Raises: OSError."""
        # The last block of a file that was cut short is padded: a header that is whole still
        # counts.
        raw = os.pread(self._heads_fd, BLOCK_BYTES, block * BLOCK_BYTES)
        return head_records.decode_header(raw.ljust(BLOCK_BYTES, b"\0"))

    def blocks(self) -> Iterator[tuple[int, TenureHeader]]:
        """The blocks that belong to a tenure. Raises: OSError."""
        for block in range(self._blocks):
            header = self.header(block)
            if header is not None:
                yield block, header

    def slots(self, block: int) -> tuple[bytes, bytes]:
        """What is in the slots of a block. Raises: OSError."""
        begin = block * BLOCK_BYTES
        even, odd = (
            os.pread(self._heads_fd, SLOT_BYTES, begin + head_records.slot_at(n)) for n in (0, 1)
        )
        return even, odd

    def allot(self, header: TenureHeader) -> int:
        """Give a tenure a block with empty slots. Returns: its number. Raises: OSError."""
        raw = head_records.encode_header(header)
        with self._mutex:
            self._make()
            if self._free:
                block = self._free[-1]
            else:
                block = self._blocks
                # The block's room on disk is taken now, so that a full disk hinders no record.
                os.posix_fallocate(self._heads_fd, block * BLOCK_BYTES, BLOCK_BYTES)
            begin = block * BLOCK_BYTES
            # The header is written last: without it the block is free.
            write_all(self._heads_fd, bytes(BLOCK_BYTES), begin)
            write_all(self._heads_fd, raw, begin)
            if self._free:
                self._free.pop()
            else:
                self._blocks += 1
            return block

    def write_header(self, block: int, header: TenureHeader) -> None:
        """Replace the header of a tenure's block. Raises: OSError."""
        raw = head_records.encode_header(header)
        with self._mutex:
            write_all(self._heads_fd, raw, block * BLOCK_BYTES)
            self._is_dirty = True

    def give_back(self, block: int) -> None:
        """Take a block back from its tenure. Raises: OSError."""
        with self._mutex:
            write_all(self._heads_fd, bytes(BLOCK_BYTES), block * BLOCK_BYTES)
            self._is_dirty = True
            self._free.append(block)

    def write(self, block: int, number: int, record: bytes) -> None:
        """Write the record of this number into a block. Raises: OSError."""
        at = block * BLOCK_BYTES + head_records.slot_at(number)
        # No loop: a record that is written in two parts could be torn between them. Its slot is
        # written again as a whole.
        if os.pwrite(self._heads_fd, record, at) != len(record):
            raise OSError(f"{self.folder / _HEADS}: a record was written in part")
        self._is_dirty = True

    def check_place(self) -> None:
        """Make sure that its path leads here: a copy may have been put in its place.

        Raises: FileNotFoundError: it was moved away.
        """
        if self._lock_fd >= 0 and not os.path.samestat(os.fstat(self._lock_fd), self.folder.stat()):
            raise FileNotFoundError(errno.ENOENT, "the folder was moved away", str(self.folder))

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a file in full or not at all. Raises: OSError."""
        write_new(path, data, is_synced=self.syncs_names)
        self.sync_names()

    def sync_names(self) -> None:
        """Make the names of files survive a power failure, if `syncs_names`. Raises: OSError."""
        if self.syncs_names:
            os.fsync(self._lock_fd)

    def sync_all(self) -> None:
        """Bring all files to the disk itself. For a thread. Raises: OSError."""
        for path in self.folder.iterdir():
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self._lock_fd)

    def sync_records(self) -> None:
        """Make records survive a power failure, if that is asked for. Raises: OSError."""
        if self.syncs_names:
            self.sync()

    def sync(self) -> None:
        """Bring all records to the disk itself. For a thread.

        Raises: OSError: this attempt failed, or one before. The kernel reports a failure once, and takes
            what it could not write for written. So a later attempt would prove nothing.
        """
        with self._syncing:  # what another thread is still syncing is not on disk yet
            if self._failure is not None:
                raise OSError(
                    self._failure.errno,
                    f"records could not be brought to disk before: {self._failure.strerror}; mend the "
                    "disk, and restart the broker",
                    str(self.folder / _HEADS),
                )
            if not self._is_dirty:
                return
            # Cleared before the call: a record that is written meanwhile may not be covered, and is
            # synced again.
            self._is_dirty = False
            try:
                os.fdatasync(self._heads_fd)
            except OSError as err:
                self._failure = err
                raise

    # ---------------------------------------------------------------------------------- life
    def tenure(self, journal: str, create_revision: int) -> Tenure:
        """Begin to hold a journal. Nothing is written to disk yet.

        Args:
            journal: its name.
            create_revision: of its spec in etcd.
        """
        header = TenureHeader(secrets.token_hex(8), journal, create_revision, self.history)
        return Tenure(self, header)

    def close(self) -> None:
        """Give up the home, and remove it if nothing is left in it. Idempotent."""
        if self._lock_fd < 0:
            return
        # Files that are closed a moment later would still remove their names, and the folder would
        # seem to hold something.
        finish_closing()
        os.close(self._heads_fd)
        self._heads_fd = -1  # the number may be reused, and nothing may be recorded there
        if not self.tenures:
            with contextlib.suppress(OSError):
                self.check_place()
                _remove(self.folder)
        os.close(self._lock_fd)
        self._lock_fd = -1


def free_homes(spool_dir: Path, owner: Owner) -> list[SpoolHome]:
    """Take all homes of a cluster whose processes have ended.

    Homes that cannot be read, or belong to other users, other clusters or living processes, are left
    alone: whoever made a home says in it what journals hold, and which lease is to be ended.

    Args:
        spool_dir: where to look.
        owner: this process; homes of its cluster are taken.

    Raises: SetupError: the folder with all homes is not ours, or cannot be read.
    """
    base = spool_dir / SPOOLS
    try:
        make_private(base)
        folders = sorted(base.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []  # if there can be none, making a home reports that
    except OSError as err:
        raise SetupError(f"cannot keep spools in {base}: {err}{_ADVICE}") from err
    taken: list[SpoolHome] = []
    for folder in folders:
        try:
            home = _take(folder, owner)
        except _UNREADABLE as err:
            _log.error("%s is left alone, since it cannot be read: %s", folder, err)
        else:
            if home is not None:
                taken.append(home)
    return taken


def _take(folder: Path, owner: Owner) -> SpoolHome | None:
    lock_fd = _lock(folder)
    if lock_fd is None:
        return None
    try:
        make_private(folder)
        # A person may have put anything here. Only a folder that names its owner is taken.
        try:
            raw = read_small(folder / _HOME)
            said = json.loads(raw)
        except FileNotFoundError:
            if not _has_records(folder):
                _remove(folder)  # its process ended while it made the home
            if folder.exists():
                what = "%s is left alone: its %s is missing, and nothing else says whose it is (restore that file)"
                _log.error(what, folder, _HOME)
            os.close(lock_fd)
            return None
        version = said.pop("version")
        former = Owner.found(said) if version == _VERSION else None
        # Offsets of another cluster's journals mean nothing in ours, though the journals may have
        # the same names.
        if former is None or former.cluster != owner.cluster:
            whose = f"version {version}" if former is None else f"cluster {former.cluster}"
            _log.warning("%s is left alone: it is of %s (ours: %s)", folder, whose, owner.cluster)
            os.close(lock_fd)
            return None
        has_place = raw.rstrip(b" ").endswith(_HAS_PLACE)
        return SpoolHome(folder, owner, former=former, has_place=has_place, lock_fd=lock_fd)
    except BaseException:
        os.close(lock_fd)
        raise


def _remove(folder: Path) -> None:
    """Remove a home, unless there is something in it."""
    own = {name for one in (_HOME, _PLACE, _HEADS) for name in (one, f"{one}.new")}
    with contextlib.suppress(OSError):  # then it stays
        if {path.name for path in folder.iterdir()} <= own:
            for name in own:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _has_records(folder: Path) -> bool:
    """Whether tenures were begun in a home. Raises: OSError."""
    try:
        return (folder / _HEADS).lstat().st_size > 0
    except FileNotFoundError:
        return False


def _lock(folder: Path) -> int | None:
    """Lock a folder. Returns: the descriptor of the lock; None: another process has it. Raises: OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The former holder may have removed the folder meanwhile: then the lock is of no use.
        if os.path.samestat(os.fstat(fd), folder.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _said_place(folder: Path) -> str:
    """Where a home was when its owner said so; empty: unknown. Raises: OSError, ValueError."""
    try:
        return read_small(folder / _PLACE).decode().strip()
    except FileNotFoundError:
        return ""
