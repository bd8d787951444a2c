"""What every call needs: a broker to ask, patience, and errors that say who failed."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, final

from gazette_platform.client.auth import Authorizer
from gazette_platform.client.counts import ClientCounts
from gazette_platform.client.read_ahead import ReadAhead
from gazette_platform.client.route_cache import RouteCache, pick_endpoint
from gazette_platform.client.wire import (
    NotYet,
    PeerUnreached,
    Wire,
    WirePool,
    call_error,
    minds_pings,
)
from gazette_platform.errors import (
    CallUnanswered,
    DataError,
    GazetteError,
    TransportError,
    ValidationError,
)
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import Header, strip_meta

if TYPE_CHECKING:
    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.pb import protocol_pb2 as pb
    from gazette_platform.serving.interface import RpcFailed

__all__ = ["Patience", "Transport"]

_log = logging.getLogger(__name__)

_HEADERS_MAX = 1024

# Seconds before each retry, as of Gazette's clients, but that it is asked each second for some ten
# seconds: so long it takes a broker that was killed to be started again, and to be where it was.
_RETRIES_S = (0.05, 0.05, 0.1, 0.1, *([1.0] * 12), 5.0)

# A stream that sent nothing counts as a success all the same if it lived for so many seconds.
_STEADY_S = 5.0

# Seconds of trying after which a log line says what is awaited: a broker that is only started again, or
# hands over, is back before.
_SILENT_S = 5.0

# Seconds after an apply in which calls ask brokers to know of it, which they mostly do in milliseconds.
_APPLIED_S = 60.0


@final
class Transport:
    """Chooses the broker of each call, and learns routes from what brokers answer.

    Args:
        peer: what is dialed, for errors: processes of other kinds are asked in the same way.
    """

    def __init__(
        self, config: ClientConfig, clock: Clock, tasks: TaskGroup, *, peer: str = "broker"
    ) -> None:
        self.peer = peer
        self.config = config
        self.clock = clock
        self.tasks = tasks
        self.auth = Authorizer(config, clock)
        self.routes = RouteCache(config.route_cache_size, config.route_cache_ttl_s, clock)
        self.was_connected = False
        """Whether any broker ever answered: then a failure is likely to pass."""
        self.random = random.Random()  # noqa: S311  spreads retries, guards nothing
        self.counts = ClientCounts()
        self.read_ahead = ReadAhead(tasks, config.read_ahead_bytes_max)
        self._pool = WirePool(config, clock, tasks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._addresses = config.addresses
        self._address = 0
        self._headers: dict[bytes, Header] = {}
        self._applied_revision = 0
        self._applied_at = 0.0

    def wire(self, journal: str = "", *, primary: bool = False) -> Wire:
        """The broker to ask about `journal`: a cached replica or primary, or the service address.

        Raises: ValidationError: called in another event loop than before.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        route = self.routes.get(strip_meta(journal)) if journal else None
        endpoint = ""
        if route is not None:
            endpoint = pick_endpoint(
                route, self.config.zone, primary=primary, condition=self._pool.condition
            )
        return self._pool.get(endpoint or self.address)

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be of `loop` from now on: what the calls of one loop wait for, another would never hear of."""
        if self._loop is not None:
            raise ValidationError(
                "the client is of the event loop that it was used in first (make an AsyncClient in "
                "each event loop, after a fork; any thread may use a Client)"
            )
        self._loop = loop

    @property
    def address(self) -> str:
        """The endpoint of calls without a route: of the addresses, one that did not fail last."""
        return self._addresses[self._address]

    def learn(self, journal: str, message: pb.Header) -> Header:
        """Remember the route of a response's header, and return the header decoded.

        Headers repeat from call to call, so that decoding them is worth remembering too.

        Raises: DataError: the header is missing, or breaks a rule.
        """
        self.was_connected = True
        raw = message.SerializeToString()
        header = self._headers.get(raw)
        if header is None:
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            header = Header.from_pb(message)
            try:
                header.validate()
            except ValidationError as err:
                raise DataError(f"validating {self.peer} response: Header.{err}") from err
            self._headers[raw] = header
        if journal:
            self.routes.update(strip_meta(journal), header.route)
        return header

    def applied(self, revision: int) -> None:
        """Note that specs were applied: later calls are to see them, whichever broker answers."""
        self._applied_revision = max(self._applied_revision, revision)
        self._applied_at = self.clock.monotonic()

    def min_revision(self, asked: int = 0) -> int:
        """The revision of etcd that the broker of a call must know; 0: any.

        Args:
            asked: by the caller, who may know of changes that others made.
        """
        revision = self._applied_revision
        if revision and self.clock.monotonic() - self._applied_at > _APPLIED_S:
            revision = self._applied_revision = 0
        return max(revision, asked)

    def failed(self, err: RpcFailed, wire: Wire, journal: str, what: str) -> TransportError:
        """Translate the error of a call through `wire`; forgets a route that led nowhere."""
        error = call_error(err, wire.endpoint, what, peer=self.peer)
        if minds_pings(err):
            self._pool.spare(wire)
        if isinstance(error, PeerUnreached | NotYet):
            self.was_connected = True
        # One that does not answer may be stopped, and others may have taken its journals over.
        if error.retriable or isinstance(error, CallUnanswered):
            self.forget(journal)
            if wire.endpoint == self.address:
                self._address = (self._address + 1) % len(self._addresses)
        return error

    def forget(self, journal: str) -> None:
        """Forget the route of a journal ("": none), so that the next call asks the address."""
        if journal:
            self.routes.invalidate(strip_meta(journal))

    def patience(self, *, timeout_s: float | None = None) -> Patience:
        """Patience for one call; `timeout_s` replaces the configured retry timeout."""
        return Patience(self, self.config.retry_timeout_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        """Close all channels."""
        await self._pool.close()


@final
class Patience:
    """Decides whether and when one call is tried again.

    The time of trying begins with the first failure since the last progress. Progress is content, or a
    stream that waited for content for a while: so a reader that was idle for hours is as patient as a
    new one. A broker that takes a call, or ends it in order, makes no progress: it may do so for ever.
    """

    def __init__(self, transport: Transport, timeout_s: float | None) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._failing_since: float | None = None
        self._waiting_since: float | None = None
        self._is_told = False
        self.attempt = 0

    def connected(self) -> None:
        """A broker has taken a call, such as a tail or a watch, that may have nothing to say for hours."""
        self._transport.was_connected = True
        self._waiting_since = self._transport.clock.monotonic()

    def progressed(self) -> None:
        """Something worked: the next failure is a first one."""
        self._failing_since = None
        self._is_told = False
        self.attempt = 0

    async def wait(self, error: GazetteError) -> None:
        """Sleep until the next attempt is due, or raise `error` when patience has run out.

        Cancellation: safe.
        """
        now = self._transport.clock.monotonic()
        if self._waiting_since is not None and now - self._waiting_since >= _STEADY_S:
            self.progressed()
        self._waiting_since = None
        if self._failing_since is None:
            self._failing_since = now
        delay_s = backoff_s(self.attempt, _RETRIES_S) * self._transport.random.uniform(0.75, 1.0)
        self.attempt += 1
        limit_s = self._timeout_s
        if isinstance(error, TransportError) and not self._transport.was_connected:
            connect_s = self._transport.config.connect_timeout_s
            limit_s = connect_s if limit_s is None else min(limit_s, connect_s)
        if limit_s is not None and now + delay_s - self._failing_since > limit_s:
            raise error
        if now - self._failing_since >= _SILENT_S and not self._is_told:
            self._is_told = True
            how_long = f"for {limit_s:g} s" if limit_s is not None else "for as long as it takes"
            _log.warning("%s; trying again %s", error, how_long)
        await asyncio.sleep(delay_s)
