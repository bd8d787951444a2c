"""An append that waits for its turn, how it ends, and what it needs of its journal."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gazette_platform.protocol import ZERO_SUM, Fragment, LabelSet, Status

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.broker.append import events, fsm
    from gazette_platform.errors import GazetteError
    from gazette_platform.protocol import JournalSpec, SuspendSpec

__all__ = ["Journal", "Outcome", "Pending", "content_sum"]


class Journal(Protocol):
    """What an appender asks of the replica that it belongs to."""

    name: str

    @property
    def spec(self) -> JournalSpec | None:
        """The spec as of now; None once the journal is deleted."""
        ...

    @property
    def revision(self) -> int:
        """Of etcd, that the rest is as of; healths and fragments of stores change without it."""
        ...

    def resolve(self, min_revision: int) -> events.Resolved | None:
        """Look the journal up; None if the key space is not at `min_revision` yet."""
        ...

    async def wait_revision(self, revision: int) -> None:
        """Wait for the key space to reach `revision`."""
        ...

    @property
    def is_consistent(self) -> bool:
        """Whether every assignment carries the current route."""
        ...

    def count_replicas(self) -> events.Replicas:
        """Brokers that serve the journal, and how many should."""
        ...

    async def update_assignments(self) -> int:
        """Write the route into the assignments. Returns: the revision to look at."""
        ...

    async def write_suspend(self, suspend: SuspendSpec) -> int:
        """Store the spec with this suspension. Returns: the revision to look at."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether the stores were listed and the first one is healthy."""
        ...

    async def wait_ready(self) -> str:
        """Wait until `is_ready`. Returns: "", or why a store stays unhealthy, or unlisted."""
        ...

    def view(self, *, begin: int, end: int, registers: LabelSet) -> events.ReplicaView | None:
        """The state as preconditions see it, with a spool of [begin, end); None: the journal is deleted."""
        ...

    @property
    def refusal(self) -> str:
        """Why nothing may be committed any more; empty while we may speak for the journal."""
        ...

    def on_rollback(self) -> None:
        """An append ended without a commit after its content had come."""
        ...


class ContentStream(Protocol):
    """Content that is still to come."""

    async def next(self) -> bytes | memoryview:
        """The next chunk; empty to commit. Raises: RpcFailed: the caller has gone or failed."""
        ...


@dataclass(slots=True)
class Outcome:
    """How an append ended."""

    status: Status
    commit: Fragment | None = None
    registers: LabelSet | None = None
    store_health_error: str = ""
    total_chunks: int = 0
    is_remote: bool = False
    """This replica does not serve the journal any more, and nothing was written: look it up again."""


@dataclass(slots=True, eq=False)
class Pending:
    """An append that waits for its turn."""

    machine: fsm.AppendFSM
    done: asyncio.Future[Outcome]
    chunks: list[bytes | memoryview] = field(default_factory=list)
    length: int = 0
    total_chunks: int = 0
    sum: asyncio.Future[bytes] | bytes = b""
    """SHA-1 of the content, or where it will be."""
    stream: ContentStream | None = None
    """Where content beyond `chunks` comes from; None: all of it is here."""
    next_effect: events.Effect | None = None
    begin: int = 0
    registers: LabelSet | None = None
    wait_until: float = 0.0
    """Monotonic seconds until which replicas that are missing, or away, are waited for."""
    is_short: bool = False
    """Whether it waits for more replicas now."""

    def finish(self, outcome: Outcome) -> None:
        """Answer, unless the caller has gone."""
        if not self.done.done():
            outcome.total_chunks = self.total_chunks
            self.done.set_result(outcome)

    def fail(self, error: GazetteError) -> None:
        """End the RPC without an answer, unless the caller has gone."""
        if not self.done.done():
            self.done.set_exception(error)


def content_sum(chunks: list[bytes | memoryview]) -> bytes:
    """SHA-1 of the concatenation of chunks; all zero if there are none."""
    if not chunks:
        return ZERO_SUM
    digest = hashlib.sha1(usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()
