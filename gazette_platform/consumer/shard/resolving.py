"""Who serves a shard, and whether it may be served now. Pure.

Source: the order of checks and the process that an answer names are those of Gazette's resolver.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.protocol import ShardSpec, ShardStatus
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import EtcdHeader, Header, ProcessId, Route
from gazette_platform.protocol.auth import ALL_CLAIMS, Claims

if TYPE_CHECKING:
    from gazette_platform.consumer.cluster import ConsumerState

__all__ = [
    "MISSING_ID",
    "STOPPED_TEXT",
    "LocalStep",
    "ShardResolution",
    "check_proxy_header",
    "local_step",
    "resolve_shard",
]

MISSING_ID: Final = ProcessId("local-ConsumerSpec", "missing-from-Etcd")
"""Stands in for our identity while etcd does not have our member key: it matches no member."""

STOPPED_TEXT: Final = "resolver has stopped serving local shards"
"""The error of a resolution that would be served here, after this process began to leave."""


@dataclass(frozen=True, slots=True)
class ShardResolution:
    """The answer to "who serves this shard?", as of one revision."""

    status: ShardStatus
    header: Header
    spec: ShardSpec | None
    is_local: bool
    """Whether the status is OK, and we are the process that is to answer."""

    @property
    def is_remote(self) -> bool:
        """Whether the call is to be proxied, with `header`, to the process that it names."""
        return self.status is ShardStatus.OK and not self.is_local


def check_proxy_header(header: Header, etcd: EtcdHeader, own_id: ProcessId) -> int:
    """Check the header of a process that forwards a call to us.

    Returns: the revision that our view has to reach before we resolve.
    Raises: ValidationError: it means another cluster, or another process.
    """
    if header.etcd.cluster_id != etcd.cluster_id:
        raise ValidationError(
            "proxied request Etcd ClusterId doesn't match our own "
            f"({header.etcd.cluster_id} vs {etcd.cluster_id})"
        )
    if header.process_id is not None and header.process_id != own_id:
        raise ValidationError(
            f"proxied request ProcessId doesn't match our own ({header.process_id} vs {own_id})"
        )
    return header.etcd.revision


def resolve_shard(
    state: ConsumerState,
    etcd: EtcdHeader,
    process_id: ProcessId,
    shard: str,
    *,
    may_proxy: bool,
    claims: Claims = ALL_CLAIMS,
) -> ShardResolution:
    """Resolve a shard at the present revision.

    Args:
        process_id: ours, whether we are a member or not.
        may_proxy: whether the answer may be another process.
        claims: of the caller; shards beyond them do not exist for it, and have no route.
    """
    own_id = process_id if process_id in state.members else MISSING_ID
    item = state.items.get(shard)
    spec = item.spec if item is not None else None
    if spec is not None and not claims.match(spec.label_set_with_id()):
        spec = None
    route = state.route_of(shard) if spec is not None else Route()
    primary = route.primary_id
    if spec is None:
        status = ShardStatus.SHARD_NOT_FOUND
    elif primary is None:
        status = ShardStatus.NO_SHARD_PRIMARY
    elif primary != own_id and not may_proxy:
        status = ShardStatus.NOT_SHARD_PRIMARY
    else:
        status = ShardStatus.OK
    # A refusal names the process that it comes from.
    answering = primary if status is ShardStatus.OK else own_id
    return ShardResolution(
        status,
        Header(answering, route, etcd),
        spec,
        is_local=status is ShardStatus.OK and answering == own_id,
    )


class LocalStep(Enum):
    """What to do about a call that we are to answer."""

    SERVE = auto()
    WAIT = auto()
    STOPPED = auto()
    """Answer SHARD_STOPPED: it cannot come to be served here."""


def local_step(*, is_store_ready: bool, is_loop_ended: bool, is_reached: bool) -> LocalStep:
    """What to do about a call, asked whenever one of these changes.

    A shard that has failed is served still, from the store that it had, as long as no call waits for it
    to read on.

    Args:
        is_store_ready: whether the store has given its checkpoint.
        is_loop_ended: whether the primary's loop has failed, or was cancelled.
        is_reached: whether progress is where the caller waits for it.
    """
    if is_store_ready and is_reached:
        return LocalStep.SERVE
    return LocalStep.STOPPED if is_loop_ended else LocalStep.WAIT
