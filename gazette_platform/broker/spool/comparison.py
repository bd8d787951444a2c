"""Compares content that others went on without with what its journal has.

A broker that was killed comes back with spools, and etcd says for some that it holds their journals no more. In a
cluster with Gazette's brokers, which record no holders, that is so for all. As a rule the journals have every byte
of them: then there is nothing to set aside, and one line says so. Only bytes that a journal does not have are worth
a warning. Stores get the others' content once its fragments are closed, which a broker that comes back brings
about, so this waits for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gazette_platform.broker.spool.persister import Persister
    from gazette_platform.broker.spool.recovery import RecoveredFragment, RecoveredTenure
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults

_log = logging.getLogger(__name__)

# How long to wait until a journal has the content, and a store, too. Seconds between looks double, since each
# look lists the store: some eight in all.
_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 1.0
# For one comparison with what brokers serve, and for all of a look. The next one goes on where it ended.
_READ_S: Final = 30.0
_LOOK_S: Final = 10.0
_AT_A_TIME: Final = 32


@dataclass(slots=True, eq=False)
class Compared:
    """How far bytes of a journal were compared with a copy of them."""

    at: int
    """Journal offset up to which both are the same."""
    is_different: bool = False
    """Whether the journal has another byte there."""


class Compare(Protocol):
    """What compares a journal with a copy of it."""

    def __call__(
        self, journal: str, compared: Compared, end: int, read: Callable[[int, int], bytes]
    ) -> Awaitable[None]:
        """Compare what brokers serve, from `compared.at` to `end`, and note how far it came. Raises: RpcFailed."""


@dataclass(slots=True)
class Resolution:
    """What becomes of content of a tenure that is not the journal's."""

    stored: list[RecoveredFragment] = field(default_factory=list)
    """A store has these bytes: they may go."""
    served: list[RecoveredFragment] = field(default_factory=list)
    """The journal has these bytes, but no store yet."""
    lacking: list[tuple[RecoveredFragment, int]] = field(default_factory=list)
    """The journal does not have the bytes from this offset on."""


@dataclass(slots=True, eq=False)
class _Doubt:
    """A tenure that is compared."""

    since: float
    due_at: float
    pause_s: float = _PAUSE_S
    is_looked: bool = False
    """Whether all of it was compared, as far as that can be, since the last decision."""
    compared: dict[RecoveredFragment, Compared] = field(default_factory=dict)


@final
class Comparison:
    """Compares tenures, and reports once how that ended.

    Args:
        clock: for how long to wait.
        persister: lists what the stores of a journal have.
        spool_dir: below which content is set aside.
        faults: counts unforeseen errors.

    Attributes:
        compare: None: there is nothing to compare with, and all content counts as lacking.
    """

    def __init__(
        self, *, clock: Clock, persister: Persister, spool_dir: Path, faults: Faults
    ) -> None:
        self.compare: Compare | None = None
        self._clock = clock
        self._persister = persister
        self._spool_dir = spool_dir
        self._faults = faults
        self._doubts: dict[RecoveredTenure, _Doubt] = {}
        self._is_announced = False
        self._journals: set[str] = set()
        self._lacking: set[str] = set()
        self._bytes = self._served_files = 0

    def has(self, found: RecoveredTenure) -> bool:
        """Whether a tenure is being compared: all that is known to be the journal's is stored."""
        return found in self._doubts

    def is_due(self, found: RecoveredTenure) -> bool:
        """Whether to look at a tenure now."""
        doubt = self._doubts.get(found)
        return doubt is None or self._clock.monotonic() >= doubt.due_at

    def forget(self, found: RecoveredTenure) -> None:
        """Compare a tenure no more."""
        self._doubts.pop(found, None)

    async def look(self) -> list[str]:
        """Compare what is due with what brokers serve, for some seconds.

        Reads may hang, so no lock of a journal may be held meanwhile: its replica would wait for that.

        Returns: journals to decide on. Cancellation: safe.
        """
        now = self._clock.monotonic()
        due = [found for found, doubt in self._doubts.items() if now >= doubt.due_at]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await side_by_side(self._look, due, at_a_time=_AT_A_TIME)
        return sorted({found.tenure.journal for found in due})

    async def _look(self, found: RecoveredTenure) -> None:
        doubt = self._doubts.get(found)
        if doubt is None:
            return
        for one in found.fragments:
            compared = doubt.compared.setdefault(one, Compared(one.state.begin))
            # It may have been set aside meanwhile, which closes its file.
            is_open = compared.at < one.state.end and not compared.is_different
            if is_open and one in found.fragments:
                file = one.file.hold()
                journal = found.tenure.journal
                try:
                    with self._faults.contained("spool", f"{journal}: comparing a spool"):
                        await self._compare(journal, one, compared)
                finally:
                    file.release()
        doubt.is_looked = True

    async def resolve(self, found: RecoveredTenure, *, waits: bool) -> Resolution | None:
        """Decide what becomes of the rest of a tenure, by the last `look`.

        Args:
            waits: whether the journal may still get these bytes; else one look decides.

        Returns: None: it is to be looked at first, or again.
        Cancellation: safe.
        """
        if self.compare is None:
            return Resolution(lacking=[(one, one.state.begin) for one in found.fragments])
        now = self._clock.monotonic()
        doubt = self._doubts.setdefault(found, _Doubt(now, now))
        has_time = now - doubt.since < _PATIENCE_S
        if not self.is_due(found) or (has_time and not doubt.is_looked):
            return None
        doubt.is_looked = False
        resolution = await self._resolution(found, doubt)
        differs = sum(one.is_different for one in doubt.compared.values())
        is_open = len(resolution.stored) + differs < len(found.fragments)
        if waits and is_open and has_time:
            doubt.due_at, doubt.pause_s = now + doubt.pause_s, 2 * doubt.pause_s
            return None
        self._note(found, resolution)
        return resolution

    async def is_same(self, journal: str, one: RecoveredFragment) -> bool:
        """Whether the journal's brokers serve the bytes of a fragment; not if that cannot be found out.

        Cancellation: safe.
        """
        compared = Compared(one.state.begin)
        if self.compare is not None:
            await self._compare(journal, one, compared)
        return self.compare is None or compared.at >= one.state.end

    async def _compare(self, journal: str, one: RecoveredFragment, compared: Compared) -> None:
        assert self.compare is not None
        read = partial(_read, one)
        try:
            async with asyncio.timeout(_READ_S):
                await self.compare(journal, compared, one.state.end, read)
        except (RpcFailed, OSError) as err:  # a time-out, too
            _log.debug("%s: content is not compared for now: %s", journal, err)

    async def _resolution(self, found: RecoveredTenure, doubt: _Doubt) -> Resolution:
        resolution = Resolution()
        same = []
        for one in found.fragments:
            compared = doubt.compared.get(one)
            at = one.state.begin if compared is None else compared.at
            if at < one.state.end:
                resolution.lacking.append((one, at))
            else:
                same.append(one)
        if same:
            tenure = found.tenure
            try:
                stored = await self._persister.listed(tenure.journal, tenure.create_revision)
            except GazetteError as err:
                _log.debug("%s: what is stored is not known for now: %s", tenure.journal, err)
                resolution.served = same
                return resolution
            for one in same:
                is_stored = stored.covers(one.state.begin, one.state.end)
                (resolution.stored if is_stored else resolution.served).append(one)
        return resolution

    def _note(self, found: RecoveredTenure, resolution: Resolution) -> None:
        self._journals.add(found.tenure.journal)
        if resolution.lacking:
            self._lacking.add(found.tenure.journal)
        held = [*resolution.stored, *resolution.served]
        self._bytes += sum(one.state.end - one.state.begin for one in held)
        self._served_files += len(resolution.served)

    def report(self) -> None:
        """Log how all comparisons ended, once the last has; or that they are under way."""
        if self._doubts:
            if not self._is_announced:
                _log.info(
                    "spools of %d journals that others went on without are compared with what the journals have",
                    len({one.tenure.journal for one in self._doubts}),
                )
            self._is_announced = True
            return
        self._is_announced = False
        if not self._journals:
            return
        unstored = ""
        if self._served_files:
            unstored = (
                f"; {self._served_files} files that no store has yet are kept in {self._spool_dir}"
            )
        if self._lacking:
            _log.info(
                "spools of %d journals are compared with what the journals have: %d lack content, which is set aside%s",
                len(self._journals),
                len(self._lacking),
                unstored,
            )
        else:
            _log.info(
                "nothing is lost of %d journals that others went on with: they have all %d bytes of this "
                "broker's spools%s",
                len(self._journals),
                self._bytes,
                unstored,
            )
        self._journals, self._lacking = set(), set()
        self._bytes = self._served_files = 0


def _read(one: RecoveredFragment, at: int, to: int) -> bytes:
    """Read bytes [at, to) of the journal from a fragment's file. For a thread. Raises: OSError."""
    return os.pread(one.file.fd, to - at, at - one.state.begin)
