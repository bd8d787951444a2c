"""Whether this process is a member of its cluster, and may still speak for its journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.protocol import ProcessId

if TYPE_CHECKING:
    from gazette_platform.etcd import Lease
    from gazette_platform.keyspace import BrokerState


# Stands in for our identity while etcd does not have our member key.
_MISSING_ID = ProcessId("local-BrokerSpec", "missing-from-Etcd")


@final
class Membership:
    """Our place in the cluster, as etcd and our own clock have it.

    It shows a broker that others took its place, before it commits or acknowledges an append. A
    process that was stopped until its lease ended sees that by its own clock; one whose lease was
    revoked sees it in its mirror of etcd. If a journal has several replicas, these refuse as well,
    unless they were stopped together with their primary. With one replica there is no other broker to ask.

    Attributes:
        id: ours, whether we are a member or not.
    """

    def __init__(self, state: BrokerState, process_id: ProcessId) -> None:
        self.id = process_id
        self._state = state
        self._lease: Lease | None = None
        self._reason = ""

    @property
    def known_id(self) -> ProcessId:
        """Our identity, or its stand-in while etcd does not know us."""
        return self.id if self.id in self._state.members else _MISSING_ID

    def hold(self, lease: Lease) -> None:
        """Our member key is under this lease."""
        self._lease = lease

    def give_up(self, reason: str) -> None:
        """Stop acknowledging: our port is about to close, and etcd may not know yet that we leave."""
        self._reason = self._reason or reason

    @property
    def problem(self) -> str:
        """Why we may not acknowledge anything; empty while we may."""
        if self._reason:
            return self._reason
        lease = self._lease
        if lease is None or lease.remaining_s <= 0:
            return "the lease of this broker has run out"
        member = self._state.members.get(self.id)
        if member is None or member.lease != lease.id:
            return "this broker is no longer a member of its cluster"
        return ""
