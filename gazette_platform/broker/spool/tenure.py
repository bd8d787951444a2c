"""One broker's holding of one journal, as it is on disk; see `home`."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, Self, final

from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.disk import (
    SpoolFile,
    finish_closing,
    remove_fragment,
    write_all,
)
from gazette_platform.broker.spool.head_records import SLOT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_platform.broker.spool.head_records import FragmentState, Record, TenureHeader
    from gazette_platform.protocol import LabelSet

_log = logging.getLogger(__name__)

_FILE_MODE: Final = 0o600
_SEALED_MODE: Final = 0o400


class Home(Protocol):
    """What a tenure needs of the home that it is in."""

    folder: Path
    boot_mark: bytes
    history: str
    syncs_names: bool
    tenures: dict[str, Tenure]

    @property
    def process(self) -> str:
        """The broker that holds it."""
        ...

    def allot(self, header: TenureHeader) -> int:
        """Give a tenure a block with empty slots. Returns: its number. Raises: OSError."""
        ...

    def write_header(self, block: int, header: TenureHeader) -> None:
        """Replace the header of a block. Raises: OSError."""
        ...

    def give_back(self, block: int) -> None:
        """Take a block back. Raises: OSError."""
        ...

    def write(self, block: int, number: int, record: bytes) -> None:
        """Write the record of this number into a block. Raises: OSError."""
        ...

    def check_place(self) -> None:
        """Make sure that its path leads to it. Raises: OSError."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a file in full or not at all. Raises: OSError."""
        ...

    def sync_names(self) -> None:
        """Make the names of files survive a power failure, if that is asked for. Raises: OSError."""
        ...

    def sync_records(self) -> None:
        """Make records survive a power failure, if that is asked for. Raises: OSError."""
        ...

    def sync(self) -> None:
        """Bring all records to the disk itself. Raises: OSError."""
        ...


@final
class Tenure:
    """This broker's holding of a journal: the files of its fragments, and the record of its head.

    Only one thread at a time may record. Other threads may make and let go of files meanwhile.
    """

    __slots__ = (
        "_block",
        "_encoded",
        "_files",
        "_header",
        "_home",
        "_last",
        "_mutex",
        "_number",
        "_ordinal",
        "_overflow",
        "_owed",
        "_promises",
        "_registers",
        "_slot_ordinal",
        "_synced",
        "_tail",
    )

    def __init__(self, home: Home, header: TenureHeader) -> None:
        """Use `SpoolHome.tenure` or `recovered`."""
        self._home = home
        self._header = header
        self._block = -1  # none before something is recorded: there are many idle journals
        self._number = 0
        self._ordinal = 0
        self._mutex = threading.Lock()
        self._files: set[SpoolFile] = set()
        self._registers: LabelSet | None = None
        self._encoded = b""
        self._overflow = [b"", b""]
        self._last = b""  # the latest record
        self._tail = b""  # its registers, if it has only their CRC
        self._slot_ordinal = 0  # number of the file that the latest record is of
        self._owed = 0  # number of that file once it is not held; 0: it is held, or none
        self._synced = 0  # number of a record that is on disk
        self._promises = 0  # slots in which a former process may have said that it is durable

    @classmethod
    def recovered(
        cls,
        home: Home,
        header: TenureHeader,
        block: int,
        latest: Record | None,
        *,
        ordinal: int,
        was_durable: bool = False,
    ) -> Self:
        """A tenure that another process had begun.

        Args:
            home: where it was found.
            header: of its block.
            block: number of its block.
            latest: the record that counts; None: there is none.
            ordinal: the greatest number of its content files, or more.
            was_durable: whether a record says that a power failure loses nothing.
        """
        tenure = cls(home, header)
        tenure._block, tenure._ordinal = block, ordinal
        if latest is not None:
            tenure._number, tenure._slot_ordinal = latest.number, latest.ordinal
            tenure._last = latest.raw
        tenure._promises = 2 if was_durable else 0
        home.tenures[header.tenure] = tenure
        return tenure

    def successor(self) -> Tenure:
        """Another holding of the same journal, which is to begin yet."""
        return Tenure(self._home, replace(self._header, tenure=secrets.token_hex(8)))

    def knows(self, registers: LabelSet) -> None:
        """Learn the registers of the latest record, which was recovered."""
        self._registers, self._encoded = registers, head_records.encode_registers(registers)
        self._tail = b"" if head_records.fits(self._encoded) else self._encoded

    @property
    def id(self) -> str:
        """Random, and different for each tenure."""
        return self._header.tenure

    @property
    def journal(self) -> str:
        """The journal that is held."""
        return self._header.journal

    @property
    def create_revision(self) -> int:
        """Of the journal's spec in etcd."""
        return self._header.create_revision

    @property
    def is_older_than_etcd(self) -> bool:
        """Whether etcd has lost the data that it had when the tenure began."""
        began, now = self._header.history, self._home.history
        return began not in ("", now) and now != ""

    @property
    def home_history(self) -> str:
        """Id of the data that etcd had when this process started; empty: not known."""
        return self._home.history

    def renew(self, create_revision: int) -> None:
        """Hold the journal by the spec that it has since etcd lost its data. For a thread. Raises: OSError.

        It stays older than etcd's data until `date`: etcd does not name it as a holder yet.
        """
        self._write_header(replace(self._header, create_revision=create_revision))

    @property
    def is_dated(self) -> bool:
        """Whether it is known to belong to the data that etcd had when this process started."""
        return self._header.history == self._home.history

    def date(self) -> None:
        """Have it belong to etcd's data, which names it as a holder, or is about to. Raises: OSError."""
        if self._block >= 0 and self._home.history and not self.is_dated:
            self._write_header(replace(self._header, history=self._home.history))

    def _write_header(self, header: TenureHeader) -> None:
        self._home.write_header(self._block, header)
        self._header = header

    @property
    def is_begun(self) -> bool:
        """Whether anything was recorded."""
        return self._block >= 0

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._home.folder

    @property
    def process(self) -> str:
        """The broker that holds the journal."""
        return self._home.process

    @property
    def files(self) -> int:
        """Number of content files that are left."""
        return len(self._files)

    def path(self, ordinal: int, suffix: str) -> Path:
        """Path of a file that belongs to the fragment of this number."""
        return self._home.folder / f"{self.id}.{ordinal}.{suffix}"

    def content_file(self, begin: int) -> SpoolFile:
        """Make the files of a fragment that begins at an offset.

        Raises: OSError: none of the files is left.
        """
        # If the folder was moved away, and a copy put in its place, files would be made in the copy
        # and records in the original.
        self._home.check_place()
        with self._mutex:
            self._ordinal += 1
            ordinal = self._ordinal
        # Never an existing file: numbers only grow, so an existing one has content that another
        # record speaks for.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            # The record of the closed fragment needs room, and the disk may be full by then.
            fd = os.open(self.path(ordinal, "sealed"), flags, _FILE_MODE)
            try:
                os.posix_fallocate(fd, 0, SLOT_BYTES)
            finally:
                os.close(fd)
            fd = os.open(self.path(ordinal, "content"), flags, _FILE_MODE)
            try:
                self._home.sync_names()
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            self._unlink(ordinal)
            raise
        return self.keep(SpoolFile(None, begin, fd=fd, ordinal=ordinal, forget=self.forget))

    def keep(self, file: SpoolFile) -> SpoolFile:
        """Count a file as one of ours, until it is forgotten."""
        with self._mutex:
            self._files.add(file)
        return file

    def record(self, ordinal: int, state: FragmentState) -> None:
        """Record what is committed, before it is reported.

        Args:
            ordinal: number of the open fragment's file; 0: the fragment is empty.
            state: of the spool.

        Raises: OSError: the record before this one still holds; call again.
        """
        if self._block < 0:
            self._block = self._home.allot(self._header)
            self._home.tenures[self.id] = self
        if state.is_durable and not self.is_synced:
            self.sync()  # this one replaces the older of two, and the newer may not be on disk yet
        # The closed fragment gets a record of its own before a slot is used for the next one. In the other order a
        # crash in between would leave content that no record speaks for.
        if ordinal != self._slot_ordinal:
            self._seal_last()
        number = self._number + 1
        # By identity: most appends keep the registers, and to encode them for each would cost more
        # than the record.
        if state.registers is not self._registers:
            self._registers = state.registers
            self._encoded = head_records.encode_registers(state.registers)
        encoded = self._encoded
        has_overflow = not head_records.fits(encoded)
        if has_overflow:
            encoded = self._write_overflow(number)
        boot = self._home.boot_mark
        raw = head_records.encode_record(
            number, ordinal, state, encoded, has_overflow=has_overflow, boot=boot
        )
        # Our state follows the write, never the other way round: if it fails, the same number is written again, over
        # the slot that may be torn, and the record before stays whole in the other slot.
        self._home.write(self._block, number, raw)
        self._number, self._last = number, raw
        self._tail = self._encoded if has_overflow else b""
        if self._promises and not state.is_durable:
            # After a power failure a record before would be believed that promises more.
            self._home.sync()
            self._promises -= 1
        if ordinal != self._slot_ordinal:
            self._slot_ordinal = ordinal
            self._pay()

    def seal(self, file: SpoolFile, state: FragmentState) -> None:
        """Write a record beside a closed fragment that says less than the record before did.

        Raises: OSError.
        """
        encoded = head_records.encode_registers(state.registers)
        has_overflow = not head_records.fits(encoded)
        short = head_records.stand_in(encoded) if has_overflow else encoded
        boot = self._home.boot_mark
        raw = head_records.encode_record(
            0, file.ordinal, state, short, has_overflow=has_overflow, boot=boot
        )
        self._seal(file, raw + encoded if has_overflow else raw)

    def _write_overflow(self, number: int) -> bytes:
        """Write registers to the file of their slot. Returns: what the record has in their place."""
        parity, encoded = number & 1, self._encoded
        # One file for each slot, as with records: while the new registers are written, those of the
        # record before stay whole.
        if self._overflow[parity] is not encoded:
            self._overflow[parity] = b""
            self._home.write_new(self._home.folder / f"{self.id}.registers.{parity}", encoded)
            self._overflow[parity] = encoded
        return head_records.stand_in(encoded)

    def _seal_last(self) -> None:
        """Keep the record of a closed fragment beside it, since the slots go on with another fragment.

        Raises: OSError.
        """
        ordinal = self._slot_ordinal
        with self._mutex:
            file = next((one for one in self._files if one.ordinal == ordinal), None)
        if ordinal and file is not None:
            # If the registers had no room, the record has only their CRC, and they follow it here.
            self._seal(file, self._last + self._tail)

    def _seal(self, file: SpoolFile, record: bytes) -> None:
        path, flags = self.path(file.ordinal, "sealed"), os.O_WRONLY | os.O_CLOEXEC
        is_there = path.exists()
        if not is_there:  # it was made ahead, and another process has removed it
            self._home.check_place()
        fd = os.open(path, flags if is_there else flags | os.O_CREAT, _FILE_MODE)
        try:
            if not is_there:
                self._home.sync_names()
            write_all(fd, record, 0)
            os.ftruncate(fd, len(record))
            if self._home.syncs_names:
                os.fsync(fd)
        finally:
            os.close(fd)
        # Read-only from now on: a store may take the file over under another name, and nothing may
        # change it there.
        with contextlib.suppress(OSError):  # by its name: whoever held it last may have closed it
            self.path(file.ordinal, "content").chmod(_SEALED_MODE)

    @property
    def is_synced(self) -> bool:
        """Whether what is recorded is known to be on disk."""
        return self._synced == self._number

    def sync(self) -> None:
        """Bring what is recorded to the disk itself. For a thread. Raises: OSError."""
        # Read before the sync: a record that is written meanwhile is not covered by it.
        number = self._number
        self._home.sync()
        self._synced = number

    def forget(self, file: SpoolFile) -> None:
        """Remove the names of a file that is no longer held. For a thread."""
        # While the latest record is of this file, a crash would find a record without its content, which looks like
        # a loss. So its names stay until a record of the next fragment is written.
        with self._mutex:
            self._files.discard(file)
            if file.ordinal == self._slot_ordinal:
                self._owed = file.ordinal
                return
        self._unlink(file.ordinal)

    def _pay(self) -> None:
        """Remove the names that were left because the record before this one was of that file."""
        with self._mutex:
            owed, self._owed = self._owed, 0
        if owed:
            self._unlink(owed)

    def _unlink(self, ordinal: int) -> None:
        try:
            self._home.sync_records()  # no record on disk may speak of them any more
        except OSError as err:
            _log.warning("%s: %s stays: %s", self.journal, self.path(ordinal, "content"), err)
            return
        path = self.path(ordinal, "content")
        try:
            remove_fragment(path)
        except OSError as err:
            _log.warning("%s: %s stays: %s", self.journal, path, err)

    def leave(self) -> None:
        """Give up the journal: others have what we held. Files with holders stay. Raises: OSError."""
        if self._block < 0:
            return
        # Names are removed in the background: they are gone before the block that speaks for them.
        finish_closing()
        for parity in (0, 1):
            (self._home.folder / f"{self.id}.registers.{parity}").unlink(missing_ok=True)
        self._home.give_back(self._block)
        self._block, self._slot_ordinal = -1, 0
        self._pay()
        self._home.tenures.pop(self.id, None)
