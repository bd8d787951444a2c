"""Where appends to a journal go on that its brokers refuse, since what they miss may be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.client.results import AwaitedBroker, HeadState
from gazette_platform.client.unary import Repeat, UnaryCall, UnaryMethod, ask
from gazette_platform.errors import SpoolsAwaited, status_error
from gazette_platform.protocol import ProcessId, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.client.transport import Transport

__all__ = ["awaiting", "reset_head"]

# APPLY: it may give up what was acknowledged to others. Earlier brokers ask for APPEND.
_NEEDED: Final = Capability.APPLY | Capability.APPEND
_RESET_HEAD: Final = UnaryMethod(
    path="/gazette_platform.Admin/ResetHead",
    response=pb.ResetHeadResponse,
    capability=_NEEDED,
    repeat=Repeat.IF_RETRIABLE,
    needs_primary=True,
)


async def reset_head(
    transport: Transport, journal: str, *, dry_run: bool = False, give_up: bool = False
) -> HeadState:
    """Let appends go on, unless brokers are awaited; see `AsyncClient.reset_head`.

    Args:
        dry_run: only report the state.
        give_up: do it even if brokers are awaited.

    Returns: how it was before, and the head of now.
    Raises: CallFailed: UNIMPLEMENTED: a broker of Gazette's own. StatusError, TransportError.
    Cancellation: leaves open whether it was done.
    """
    request = pb.ResetHeadRequest(
        journal=journal,
        min_etcd_revision=transport.min_revision(),
        dry_run=dry_run,
        give_up=give_up,
    )

    def read(response: pb.ResetHeadResponse) -> HeadState:
        transport.learn(journal, response.header)
        status = Status.from_wire(response.status)
        if status is not Status.OK:
            raise status_error(status.name, response.store_health_error, journal=journal)
        awaited = (
            AwaitedBroker(ProcessId.from_pb(one.id).name, one.is_running)
            for one in response.awaited
        )
        return HeadState(response.head, response.was_refused, tuple(awaited))

    reset = UnaryCall(
        method=_RESET_HEAD, request=request, what=f"reset of the head of {journal}", journal=journal
    )
    return await ask(transport, reset, read)


def awaiting(journal: str, state: HeadState) -> SpoolsAwaited:
    """The error of a reset that would give up content."""
    who = ", ".join(one.name for one in state.awaited)
    return SpoolsAwaited(
        f"{journal}: content from {state.head} on that only spools of {who} hold would be given up "
        "(start one of these with its spool; or, if they are lost, give it up: with give_up, or "
        "`gazctl journals reset-head --yes`)"
    )
