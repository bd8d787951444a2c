"""What the clients of a run share, and what is known of them when it is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gazette_platform.client import AsyncClient, ClientConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from gazette_platform.ops.clock import Clock
    from tests.chaos.allowed import Suspension
    from tests.checker.history import Recorder

__all__ = ["Scene", "WorkloadConfig"]


# Of runs that take as many streamed appends one after another.
_STREAMS_MIN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadConfig:
    """Who does how much."""

    journals: int = 20
    writers: int = 16
    readers: int = 8
    replication: int = 3
    appends_per_s: float = 10.0
    """Most appends a second of each writer."""
    fragment_length: int = 256 << 10
    """Bytes after which fragments roll: small, so that many are persisted."""
    min_append_rate: int = 16
    """Bytes a second below which brokers end an append; streams are a little faster."""
    stream_s: float = 37.0
    """How long a streamed append takes: longer than any timer of brokers that must not end it."""
    has_upkeep: bool = True
    """Whether specs change, and journals are suspended, flushed and pruned meanwhile."""

    def has_time_for_streams(self, duration_s: float) -> bool:
        """Whether a run is so long that a streamed append has to come to its end."""
        return self.has_upkeep and duration_s >= _STREAMS_MIN * self.stream_s

    @property
    def journal_names(self) -> tuple[str, ...]:
        """The journals of writers and readers."""
        return tuple(f"chaos/journal-{number:02d}" for number in range(self.journals))

    @property
    def selector(self) -> str:
        """Selects these."""
        return "name:prefix=chaos/"

    @property
    def streamed_name(self) -> str:
        """The journal of appends that take long, which all others of it wait for."""
        return "chaos-streamed/journal"

    @property
    def pruned_name(self) -> str:
        """The journal whose oldest fragments are deleted."""
        return "chaos-pruned/journal"

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every journal."""
        more = (self.streamed_name, self.pruned_name) if self.has_upkeep else ()
        return self.journal_names + more


@dataclass(kw_only=True)
class Scene:
    """What all clients of a run share."""

    config: WorkloadConfig
    address: str
    """Leads to a broker that works."""
    http_addresses: Callable[[], Sequence[str]]
    """Of brokers that run."""
    fragments: Path
    """Folder of the store."""
    lease_s: float
    """Of the brokers: bounds how long a client waits for an answer."""
    recorder: Recorder
    clock: Clock
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    suspensions: list[Suspension] = field(default_factory=list)
    """Those that were asked for."""
    has_streamed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a streamed append has ended well."""
    acknowledged: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The greatest end that a writer got, by journal."""
    took_part: Counter[str] = field(default_factory=Counter)
    """What was done with success, by who did it: appends, bytes read, or operations."""
    findings: list[str] = field(default_factory=list)
    """What must not be, and no history of appends and reads shows."""

    @property
    def single_config(self) -> ClientConfig:
        """For one attempt a call, so that what became of it is known as well as can be.

        Its routes are forgotten soon, for the broker that they name may be paused.
        """
        return ClientConfig(
            address=self.address,
            retry_timeout_s=0,
            append_timeout_s=2 * self.lease_s,
            call_timeout_s=2 * self.lease_s,
            route_cache_ttl_s=self.lease_s,
            keepalive_s=max(1.0, self.lease_s / 2),
            file_root=self.fragments,
        )

    @contextlib.asynccontextmanager
    async def client(
        self, *, retry_timeout_s: float, call_timeout_s: float | None = None
    ) -> AsyncIterator[AsyncClient]:
        """A client that is patient.

        Args:
            call_timeout_s: of one attempt; None: as of one that is not patient.
        """
        patient = replace(
            self.single_config,
            call_timeout_s=call_timeout_s or self.single_config.call_timeout_s,
            retry_timeout_s=retry_timeout_s,
            connect_timeout_s=max(retry_timeout_s, 1.0),
        )
        async with AsyncClient(patient) as client:
            yield client

    def note_acknowledged(self, journal: str, end: int) -> None:
        """A writer learnt that its append ends there."""
        self.acknowledged[journal] = max(self.acknowledged[journal], end)

    def note_finding(self, text: str) -> None:
        """Something was seen that must not be."""
        self.findings.append(text)
        self.recorder.note(f"finding: {text}")

    async def is_stopped(self, seconds: float) -> bool:
        """Sleep, but not beyond the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self.stopping.wait()
        return self.stopping.is_set()
