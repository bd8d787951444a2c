"""What every call of a client needs: a broker to ask, retries, metrics, and errors that name the peer.

`Transport` chooses the broker of each call and learns routes from responses. `Patience` decides whether
and when a failed call is retried. `ask` makes a unary call until it is answered or patience ends.
Routes are hints: a stale one costs one more attempt, because the next call asks the service address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from google.protobuf.message import Message

from gazette_platform.client.read_ahead import ReadAhead
from gazette_platform.client.wire import (
    Authorizer,
    NotYet,
    PeerUnreached,
    Wire,
    WirePool,
    call_error,
    decoded,
    minds_pings,
)
from gazette_platform.errors import (
    CallUnanswered,
    DataError,
    GazetteError,
    TransportError,
    ValidationError,
)
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol import Header, strip_meta
from gazette_platform.serving.interface import Condition, Kind, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment, LabelSelector, Route
    from gazette_platform.protocol.auth import Capability
    from gazette_platform.protocol.pb import protocol_pb2 as pb
    from gazette_platform.serving.interface import ClientChannel


# ------------------------------------------------------------------ the broker of a call

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
        channels: as of `WirePool`.
    """

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        tasks: TaskGroup,
        *,
        peer: str = "broker",
        channels: Mapping[str, ClientChannel] | None = None,
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
        self._pool = WirePool(config, clock, tasks, channels)
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


# ------------------------------------------------------------------ calls with one response

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Repeat(Enum):
    """When a call that failed is made again."""

    IF_UNANSWERED = auto()
    """Also if no answer came in time: it changes nothing."""
    IF_RETRIABLE = auto()
    """If the error says that it is likely to pass: doing it twice does no harm, but may take long."""
    IF_UNSENT = auto()
    """Likewise, but only if no broker can have got it: it may be refused just because it was done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryMethod(Generic[M]):
    """A method of the services of brokers."""

    path: str
    """As in ``/protocol.Journal/Apply``."""
    response: type[M]
    capability: Capability
    """What the caller's token has to allow."""
    repeat: Repeat = Repeat.IF_UNANSWERED
    needs_primary: bool = False
    """Whether only the primary of the journal can answer."""
    validate: Callable[[M], None] | None = None
    """Raises ValidationError: a response breaks a rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryCall(Generic[M]):
    """What is asked of brokers."""

    method: UnaryMethod[M]
    request: Message
    what: str
    """The call, for errors."""
    journal: str = ""
    """Its brokers are asked; empty: any broker."""
    claim: LabelSelector | str = ""
    """What the token has to be for, although any broker is asked: a journal, or a selector."""
    timeout_s: float | None = None
    """Seconds for an attempt; None: as configured."""


async def ask(transport: Transport, call: UnaryCall[M], read: Callable[[M], T]) -> T:
    """Make a call until it is answered, for as long as the client has patience.

    Args:
        transport: reaches the brokers.
        call: what to ask.
        read: what to make of a response; it may raise, and the error decides as the call's own does.

    Raises: TransportError; DataError: the response is malformed; what `read` raises.
    Cancellation: leaves open whether it was done.
    """
    method, patience = call.method, transport.patience()
    while True:
        wire = transport.wire(call.journal, primary=method.needs_primary)
        is_once = method.repeat is Repeat.IF_UNSENT
        may_be_sent = is_once and await wire.connected()
        try:
            response = await _answer(transport, wire, call)
            may_be_sent = is_once
            return read(response)
        except GazetteError as err:
            if may_be_sent or not may_repeat(err, method.repeat):
                raise
            await patience.wait(err)


async def ask_once(transport: Transport, call: UnaryCall[M]) -> M:
    """The response to a call, which is made once. Raises, cancellation: as `ask`."""
    wire = transport.wire(call.journal, primary=call.method.needs_primary)
    return await _answer(transport, wire, call)


async def _answer(transport: Transport, wire: Wire, call: UnaryCall[M]) -> M:
    method, request, config = call.method, call.request, transport.config
    made = wire.channel.call(
        method.path,
        Kind.UNARY,
        transport.auth.metadata(method.capability, call.claim or call.journal) or (),
        request.SerializeToString(),
        timeout_s=config.call_timeout_s if call.timeout_s is None else call.timeout_s,
    )
    try:
        with wire:
            raw = await made.answer()
    except RpcFailed as err:
        raise transport.failed(err, wire, call.journal, call.what) from err
    return decoded(method.response, raw, method.validate, peer=transport.peer)


def may_repeat(error: GazetteError, repeat: Repeat = Repeat.IF_UNANSWERED) -> bool:
    """Whether to make a call again that failed with `error`."""
    is_unanswered = isinstance(error, CallUnanswered)
    return error.retriable or (is_unanswered and repeat is Repeat.IF_UNANSWERED)


# ------------------------------------------------------------------ routes


def _unknown(_: str) -> Condition:
    return Condition.UNKNOWN


def pick_endpoint(
    route: Route,
    zone: str,
    *,
    primary: bool,
    condition: Callable[[str], Condition] = _unknown,
    leaves_zone: bool = False,
) -> str:
    """The endpoint to dial for a journal of `route`; "" when the route names none.

    Args:
        zone: the caller's; replicas there are preferred, then those that did not fail, then that of
            this process, then those that are connected, then the first.
        primary: the call needs the primary.
        condition: of the connection to an endpoint.
        leaves_zone: whether to prefer a replica of another zone to one that failed. A client had
            better fail: it asks its service address next, and leaves traffic between zones to
            brokers that know more.

    Source: the order is that of Gazette's dispatcher, which never leaves the zone.
    """
    if not route.endpoints:
        return ""
    if primary:
        return route.endpoints[route.primary] if route.primary >= 0 else ""
    best = ""
    best_rank: tuple[int, ...] | None = None
    for member, endpoint in zip(route.members, route.endpoints, strict=False):
        if not endpoint:
            continue
        is_elsewhere, found = member.zone != zone, condition(endpoint)
        has_failed = found is Condition.FAILED
        order = (has_failed, is_elsewhere) if leaves_zone else (is_elsewhere, has_failed)
        rank = (*order, found)
        if best_rank is None or rank < best_rank:
            best, best_rank = endpoint, rank
    return best


@final
class RouteCache:
    """Routes of the journals used last.

    An entry lives `ttl_s` from its last update, whether or not it is used. Size 0 remembers
    nothing, so that every call goes to the service address.
    """

    def __init__(self, size: int, ttl_s: float, clock: Clock) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: Lru[str, tuple[Route, float]] = Lru(size)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, journal: str) -> Route | None:
        """The route of `journal`, or None when it is unknown or too old."""
        entry = self._entries.get(journal)
        if entry is None:
            return None
        route, expires_at = entry
        if self._clock.monotonic() >= expires_at:
            self._entries.drop(journal)
            return None
        return route

    def update(self, journal: str, route: Route | None) -> None:
        """Remember `route`; None or one without members forgets the journal."""
        if route is None or not route.members:
            self._entries.drop(journal)
        else:
            self._entries.put(journal, (route, self._clock.monotonic() + self._ttl_s))

    def invalidate(self, journal: str) -> None:
        """Forget the route of `journal`."""
        self._entries.drop(journal)


# ------------------------------------------------------------------ metrics

_Codec = tuple[str, str]


@final
class ClientCounts:
    """Bytes and fragments of a client: a collector, which ``prometheus_client.REGISTRY.register`` takes.

    The event loop of the client adds to it; any thread may read it. Fragments are those that the client
    fetched from stores itself; each is counted as often as it was opened.

    Attributes:
        appended_bytes: of appends that were acknowledged, by journal.
        read_bytes: that were given to readers, by journal.
        opened: fragments, by journal and codec; likewise below.
        opened_content_bytes: content of these.
        fetched_bytes: content of these that was given to readers.
        skipped_bytes: content of these before the offset that was read from.
    """

    def __init__(self) -> None:
        self.appended_bytes: defaultdict[str, int] = defaultdict(int)
        self.read_bytes: defaultdict[str, int] = defaultdict(int)
        self.opened: defaultdict[_Codec, int] = defaultdict(int)
        self.opened_content_bytes: defaultdict[_Codec, int] = defaultdict(int)
        self.fetched_bytes: defaultdict[_Codec, int] = defaultdict(int)
        self.skipped_bytes: defaultdict[_Codec, int] = defaultdict(int)

    def open_fragment(self, fragment: Fragment, offset: int) -> None:
        """A fragment is fetched, to be read from an offset on."""
        key = fragment.journal, fragment.codec.name
        self.opened[key] += 1
        self.opened_content_bytes[key] += fragment.content_length
        self.skipped_bytes[key] += max(0, offset - fragment.begin)

    def read_fragment(self, fragment: Fragment, length: int) -> None:
        """So many bytes of a fragment were given to a reader."""
        self.fetched_bytes[fragment.journal, fragment.codec.name] += length

    def collect(self) -> Iterator[Any]:
        """The metrics, by Gazette's names."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415  slow to import

        def counter(name: str, text: str, values: Mapping[Any, int], *labels: str) -> Any:
            family = CounterMetricFamily(name, text, labels=labels)
            for key, value in list(values.items()):
                family.add_metric([key] if isinstance(key, str) else list(key), value)
            return family

        journal, both = ("journal",), ("journal", "codec")
        yield counter("gazette_append_bytes", "Bytes appended.", self.appended_bytes, *journal)
        yield counter("gazette_read_bytes", "Bytes read.", self.read_bytes, *journal)
        yield counter("gazette_fragment_open", "Fragments opened.", self.opened, *both)
        yield counter(
            "gazette_fragment_open_content_length",
            "Content of the fragments opened, in bytes.",
            self.opened_content_bytes,
            *both,
        )
        yield counter(
            "gazette_read_fragment_bytes", "Bytes read of fragments.", self.fetched_bytes, *both
        )
        yield counter(
            "gazette_discard_fragment_bytes",
            "Bytes of fragments before the offset read from.",
            self.skipped_bytes,
            *both,
        )
