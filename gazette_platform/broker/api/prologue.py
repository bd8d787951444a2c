"""What calls have in common before their own work begins.

A request is decoded and held against its rules, and its journal is resolved to the broker that is to
answer. `service` has checked before that the caller may make such a call at all.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from google.protobuf.message import Message

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import Header, Status
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb

    Routed = (
        pb.AppendRequest
        | pb.ReadRequest
        | pb.FragmentsRequest
        | admin_pb.FlushRequest
        | admin_pb.ResetHeadRequest
    )

__all__ = ["Found", "decode", "endpoint_of", "find", "find_readable", "found_of", "rules"]

M = TypeVar("M", bound=Message)


@contextlib.contextmanager
def rules(field: str = "") -> Iterator[None]:
    """Hold a request against its rules within this block.

    Args:
        field: of the request, if the rules are those of one field; errors name it.

    Raises: RpcFailed: in place of ValidationError.
    """
    try:
        yield
    except ValidationError as err:
        raise RpcFailed(Code.UNKNOWN, str(err.within(field) if field else err)) from err


def decode(kind: type[M], raw: bytes, validate: Callable[[M], None]) -> M:
    """A request that keeps its rules.

    Raises: RpcFailed: it breaks a rule. DecodeError: the bytes are no such request.
    """
    request = kind.FromString(raw)
    with rules():
        validate(request)
    return request


class Found(NamedTuple):
    """Who answers a call about a journal.

    Attributes:
        status: OK if some broker serves it.
        replica: ours, if we serve it; None: another broker does (`is_remote`), or none.
    """

    resolution: Resolution
    status: Status
    replica: Replica | None

    @property
    def is_remote(self) -> bool:
        """Whether another broker serves the call."""
        return self.status is Status.OK and self.resolution.is_remote


async def find(
    resolver: Resolver[Replica],
    request: Routed,
    claims: Claims,
    *,
    may_proxy: bool,
    require_primary: bool,
    min_revision: int = 0,
) -> Found:
    """Find out who answers a request, once our view of etcd is as new as the request asks for.

    All arguments are those of `Resolver.resolve`.

    Raises: RpcFailed: the broker that forwarded it means another cluster or process, or we stopped.
    Cancellation: safe.
    """
    resolution = await resolver.resolve(
        request.journal,
        may_proxy=may_proxy,
        require_primary=require_primary,
        min_revision=min_revision,
        proxy_header=Header.from_pb(request.header) if request.HasField("header") else None,
        claims=claims,
    )
    return found_of(resolver, resolution, require_primary=require_primary)


async def find_readable(
    resolver: Resolver[Replica],
    request: pb.ReadRequest | pb.FragmentsRequest,
    claims: Claims,
    *,
    min_revision: int = 0,
) -> Found:
    """Like `find`, for a journal's content: any replica answers, unless the spec forbids to read."""
    found = await find(
        resolver,
        request,
        claims,
        may_proxy=not request.do_not_proxy,
        require_primary=False,
        min_revision=min_revision,
    )
    spec = found.resolution.spec
    if found.status is Status.OK and spec is not None and not spec.flags.may_read:
        return found._replace(status=Status.NOT_ALLOWED, replica=None)
    return found


def found_of(
    resolver: Resolver[Replica], resolution: Resolution, *, require_primary: bool = False
) -> Found:
    """Who answers, according to a resolution."""
    status = resolution.status
    replica = resolver.replicas.get(resolution.journal) if resolution.is_local else None
    if resolution.is_local and replica is None:
        # It was unassigned after it was resolved, or its replica could not be begun yet.
        primary, any_one = Status.NOT_JOURNAL_PRIMARY_BROKER, Status.NOT_JOURNAL_BROKER
        status = primary if require_primary else any_one
    return Found(resolution, status, replica)


def endpoint_of(found: Resolution) -> str:
    """Where the broker is that serves a call. Raises: RpcFailed: UNAVAILABLE: it has no endpoint."""
    header = found.header
    endpoint = header.route.endpoint_of(header.process_id) if header.process_id else ""
    if not endpoint:
        raise NotNow(f"{found.journal}: its primary has no endpoint")
    return endpoint
