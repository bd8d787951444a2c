"""Kafka's requests and answers: framing, calls, versions and schemas; logins, and what a client may do.

`kio` has a class for each version of each message, generated from Kafka's own schemas. Handlers work with any version: they
read fields of the request that the least version has, or ask with `Call.get`, and build answers with `Call.new`, which leaves
out the fields that the version does not have.

The password of PLAIN and the bearer token of OAUTHBEARER are tokens as brokers take them. The gateway calls brokers with a token
of its own that is good for everything, so what a client may not do is refused here or nowhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import struct
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from gazette_platform.errors import DataError
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.topics import PARTITION, TOPIC
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.auth import Capability, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from gazette_platform.kafka.topics import Partition, Topic
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator

_log = logging.getLogger(__name__)


API_VERSIONS: Final = 18
SIZE_BYTES: Final = 4

_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")
_NO_TIME: Final = timedelta()


class Malformed(DataError):
    """A request that is none: the connection is closed, as Kafka does."""


class Handler(Protocol):
    """Answers a call.

    Calls of a connection are handled one after the other. A handler that returns an awaitable has done what the order matters
    for; its answer is awaited while later calls are handled, and sent in turn. None: no answer is sent.
    """

    async def __call__(self, call: Call) -> Any:
        """The answer: an entity made by `Call.new`, an awaitable of one, or None. Raises: what `failures` knows."""
        ...


class Api(NamedTuple):
    """One kind of request, and who answers it."""

    key: int
    name: str
    """Of the package of its schemas, such as ``list_offsets``."""
    least: int
    most: int
    handle: Handler
    said_least: int | None = None
    """The least version that ApiVersions lists, if it is lower than what works."""


class Part(Protocol):
    """Some calls, and what they share."""

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        ...

    async def start(self) -> None:
        """Begin: all parts exist, and the node is registered."""
        ...

    async def stop(self) -> None:
        """End: no call comes any more."""
        ...


@final
class Peer:
    """The other end of a connection, for handlers.

    Attributes:
        host: its address.
        kept: what parts keep for the connection, by part.
        principal: the name that it gave as its own.
        access: what it may do.
    """

    def __init__(self, host: str, access: Access) -> None:
        self.host = host
        self.access = access
        self.kept: dict[str, Any] = {}
        self.principal = ""
        self._closing: list[Callable[[], None]] = []

    def on_close(self, call: Callable[[], None]) -> None:
        """Have `call` run once the connection is closed."""
        self._closing.append(call)

    def close(self) -> None:
        """Run what was given to `on_close`."""
        closing, self._closing = self._closing, []
        for call in closing:
            call()


@final
class Call:
    """One request of a client.

    Attributes:
        request: as `kio` decodes it.
        peer: the connection it came by.
    """

    def __init__(self, api: Api, head: Head, client_id: str, request: Any, peer: Peer) -> None:
        self.api = api
        self.version = head.version
        self.correlation_id = head.correlation_id
        self.client_id = client_id
        self.request = request
        self.peer = peer

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the request, or `default` if this version has none."""
        return getattr(self.request, name, default)

    def new(self, kind: str, /, **fields: Any) -> Any:
        """An entity of the answer. Fields that this version does not have are left out.

        Args:
            kind: its class, such as ``MetadataResponseTopic``.
            fields: their values; ``throttle_time`` need not be given.
        """
        return maker(self.api.name, self.version, kind)(fields)


@cache
def _module(name: str, version: int, kind: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")


@cache
def maker(
    api: str, version: int, name: str, kind: str = "response"
) -> Callable[[dict[str, Any]], Any]:
    """Makes entities of fields, and leaves out those that the version does not have."""
    entity = getattr(_module(api, version, kind), name)
    known = frozenset(field.name for field in dataclasses.fields(entity))
    throttled = "throttle_time" in known

    def make(fields: dict[str, Any]) -> Any:
        if throttled:
            fields.setdefault("throttle_time", _NO_TIME)
        if not fields.keys() <= known:
            fields = {key: value for key, value in fields.items() if key in known}
        return entity(**fields)

    return make


def message_class(name: str, version: int, kind: str) -> Any:
    """The class of a message; `kind` is ``request`` or ``response``."""
    words = name.title().replace("_", "")
    return getattr(_module(name, version, kind), f"{words}{kind.title()}")


class Head(NamedTuple):
    """What every request begins with."""

    key: int
    version: int
    correlation_id: int


def read_head(frame: bytes) -> Head:
    """Raises: Malformed: the frame is too short."""
    if len(frame) < _HEAD.size:
        raise Malformed(f"a request of {len(frame)} bytes has no header")
    return Head(*_HEAD.unpack_from(frame))


def read_call(api: Api, frame: bytes, peer: Peer) -> Call:
    """The call of a frame, whose version the API has. Raises: Malformed."""
    head = read_head(frame)
    kind = message_class(api.name, head.version, "request")
    try:
        header, size = entity_reader(kind.__header_schema__)(frame, 0)
        request, _ = entity_reader(kind)(
            frame, size
        )  # librdkafka adds bytes, and Kafka passes over them
    except Exception as err:
        raise Malformed(f"{api.name} v{head.version}: {type(err).__name__}: {err}") from err
    return Call(api, head, header.client_id or "", request, peer)


def answer_bytes(correlation_id: int, answer: Any) -> bytes:
    """The frame of an answer, with its size."""
    header = answer.__header_schema__
    buffer: Any = _Pieces()
    entity_writer(header)(buffer, header(correlation_id=correlation_id))
    entity_writer(type(answer))(buffer, answer)
    size = _SIZE.pack(sum(map(len, buffer.pieces)))
    return b"".join((size, *buffer.pieces))


@final
class _Pieces:
    """A file that keeps what is written as it is: records are copied once, into the frame."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.write = self.pieces.append


def versions_answer(
    apis: Mapping[int, Api], version: int, *, error: ErrorCode = ErrorCode.none
) -> Any:
    """The answer to ApiVersions."""
    entries = tuple(
        maker("api_versions", version, "ApiVersion")(
            {
                "api_key": api.key,
                "min_version": api.least if api.said_least is None else api.said_least,
                "max_version": api.most,
            }
        )
        for api in sorted(apis.values())
    )
    fields = {"error_code": error, "api_keys": entries}
    return maker("api_versions", version, "ApiVersionsResponse")(fields)


def unsupported_answer(apis: Mapping[int, Api], frame: bytes) -> bytes:
    """The answer to ApiVersions of an unknown version: version 0, so that the client asks again."""
    answer = versions_answer(apis, 0, error=ErrorCode.unsupported_version)
    return answer_bytes(read_head(frame).correlation_id, answer)


MECHANISMS: Final = ("PLAIN", "OAUTHBEARER")
"""Of SASL."""

_PLAIN_PARTS: Final = 3
SEEN_BY: Final = Capability.LIST | Capability.READ | Capability.APPEND | Capability.APPLY
"""Any of these, for a topic that the client names."""


@final
class Access:
    """What the client of one connection may do.

    Attributes:
        mechanism: that it has chosen; empty: none.
        is_raw: whether what comes next is the bare login that follows a SaslHandshake of version 0.
        why: it may do nothing.
    """

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth
        self._claims: Claims | None = None
        self.mechanism = ""
        self.is_raw = False
        self.why = "the client must log in first, with a token (security.protocol=SASL_SSL)"
        with contextlib.suppress(Unauthenticated):
            self._claims = auth.authorize({}, Capability(0))

    # ------------------------------------------------------------ logins

    @property
    def is_closed(self) -> bool:
        """Whether it may do nothing, as long as it does not log in."""
        return self._claims is None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the token expires. They count the difference that clocks may have. None: never."""
        return None if self._claims is None else self._auth.remaining_s(self._claims)

    @property
    def subject(self) -> str:
        """Who the token names; empty: no one."""
        return "" if self._claims is None else self._claims.subject

    @property
    def lifetime(self) -> timedelta:
        """How long the token is good; zero: for ever. Clients log in again before."""
        remaining_s = self.remaining_s
        return timedelta() if remaining_s is None else timedelta(seconds=max(0.0, remaining_s))

    def log_in(self, content: bytes) -> str:
        """Take the token of a login.

        Args:
            content: of the mechanism that was chosen.

        Returns: the name of the user, which may be anything.
        Raises: Unauthenticated: there is none, or it does not verify.
        """
        mechanism, self.is_raw = self.mechanism, False
        self.close("the login was refused")
        if not mechanism:
            raise Unauthenticated("SaslHandshake comes before SaslAuthenticate")
        read = _read_plain if mechanism == "PLAIN" else _read_bearer
        user, token = read(content)
        self._claims = self._auth.authorize({"authorization": f"Bearer {token}"}, Capability(0))
        return user

    def close(self, why: str) -> None:
        """Allow nothing from here on."""
        self._claims, self.why, self.mechanism = None, why, ""

    # ------------------------------------------------------------ questions

    @property
    def _now(self) -> Claims:
        if self._claims is None:
            raise KafkaError(ErrorCode.sasl_authentication_failed, self.why)
        return self._claims

    def may(self, capability: Capability, spec: JournalSpec) -> bool:
        """Whether the client may do one thing with a journal."""
        claims = self._now
        if not claims.capability & capability:
            return False
        return claims.is_for_all or claims.match(spec.label_set_with_name())

    def may_all(self, capability: Capability) -> bool:
        """Whether the client may do one thing with all journals."""
        return bool(self._now.capability & capability) and self._now.is_for_all

    def check(self, capability: Capability, partition: Partition) -> None:
        """Raises: KafkaError: the client may not do this with the journal of a partition."""
        if not self.may(capability, partition.listing.spec):
            raise _topic_error(capability, partition.topic)

    def check_new(self, capability: Capability, topic: str, prefix: str) -> None:
        """Ask for a topic that does not exist, so that the answer does not show whether it does.

        Args:
            prefix: of journals of topics that clients make.

        Raises: KafkaError: the client might not do this if the topic existed.
        """
        labels = {"name": f"{prefix}{topic}/part=000", TOPIC: topic, PARTITION: "0"}
        claims = self._now
        if not claims.capability & capability or not claims.match(LabelSet.of(labels)):
            raise _topic_error(capability, topic)

    def check_specs(self, topic: str, specs: Iterable[JournalSpec]) -> None:
        """Raises: KafkaError: the client may not make these journals of a topic."""
        if not all(self.may(Capability.APPLY, spec) for spec in specs):
            raise _topic_error(Capability.APPLY, topic)

    def sees(self, topic: Topic, *, named: bool = True) -> bool:
        """Whether the client may see a topic.

        Args:
            named: the client names it, so whoever may do anything with it is answered; otherwise it takes LIST.
        """
        capability = SEEN_BY if named else Capability.LIST
        return any(self.may(capability, each.listing.spec) for each in topic.partitions.values())

    def check_any(self, capability: Capability, code: ErrorCode, *, of_all: bool = False) -> None:
        """Ask for what has no journal, as a group or a transaction.

        Args:
            of_all: the capability must be for all journals.

        Raises: KafkaError: the token lacks the capability.
        """
        claims = self._now
        if not claims.capability & capability or (of_all and not claims.is_for_all):
            extent = " for all journals" if of_all else ""
            raise KafkaError(code, f"the token lacks the capability {capability.name}{extent}")


def _topic_error(capability: Capability, topic: str) -> KafkaError:
    text = f"the token does not allow {capability.name} for topic {topic}"
    return KafkaError(ErrorCode.topic_authorization_failed, text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as err:
        raise Unauthenticated("the login is not UTF-8") from err


def _read_plain(content: bytes) -> tuple[str, str]:
    """User and password of RFC 4616. Raises: Unauthenticated: it is malformed."""
    parts = _text(content).split("\0")
    if len(parts) != _PLAIN_PARTS or not parts[2]:
        raise Unauthenticated("expected a user name, and a token as the password")
    return parts[1], parts[2]


def _read_bearer(content: bytes) -> tuple[str, str]:
    """User and token of RFC 7628. Raises: Unauthenticated: it is malformed."""
    head, *pairs = _text(content).split("\x01")
    for pair in pairs:
        name, _, value = pair.partition("=")
        scheme, _, token = value.partition(" ")
        if name == "auth" and scheme.lower() == "bearer" and token:
            user = head.partition("a=")[2].rstrip(",")
            return user, token.strip()
    raise Unauthenticated("expected auth=Bearer and a token")


SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
LOGIN: Final = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))
"""Requests that are served before a client has logged in."""

DECIDED: Final = LOGIN | frozenset(
    (*range(4), *range(8, 17), 19, 20, *range(22, 27), 28, 32, 37, 42, 47, 60, 65, 66)
)
"""Requests whose handlers ask `Access` what the client may do. No other is served while there are keys."""


def check_group(
    call: Call, capability: Capability = Capability.READ, *, of_all: bool = False
) -> None:
    """Raises: KafkaError: the client may do nothing with groups, or not this with groups of others."""
    code = ErrorCode.group_authorization_failed
    call.peer.access.check_any(capability, code, of_all=of_all)


@final
class Login:
    """Answers SaslHandshake and SaslAuthenticate."""

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(SASL_HANDSHAKE, "sasl_handshake", 0, 1, self._handshake)
        yield Api(SASL_AUTHENTICATE, "sasl_authenticate", 0, 2, self._authenticate)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def _handshake(self, call: Call) -> Any:
        access, mechanism = call.peer.access, call.request.mechanism
        code = ErrorCode.none
        if mechanism in MECHANISMS:
            access.mechanism, access.is_raw = mechanism, call.version == 0
        else:
            code = ErrorCode.unsupported_sasl_mechanism
        return call.new("SaslHandshakeResponse", error_code=code, mechanisms=MECHANISMS)

    async def _authenticate(self, call: Call) -> Any:
        access = call.peer.access
        code, text = ErrorCode.none, None
        try:
            call.peer.principal = access.log_in(call.request.auth_bytes)
        except Unauthenticated as err:
            code, text = ErrorCode.sasl_authentication_failed, str(err)
            _log.warning("Kafka client %s may not log in: %s", call.peer.host, err)
        return call.new(
            "SaslAuthenticateResponse",
            error_code=code,
            error_message=text,
            auth_bytes=b"",
            session_lifetime=access.lifetime,
        )
