"""What a client of Kafka may do, and how much: its token, the questions that handlers ask, and quotas. Pure.

The gateway calls brokers with a token of its own that is good for everything, so what a client may not do is refused here or
nowhere.

Quotas are bytes a second. Answers say how long the client has to wait (``throttle_time_ms``), and its connection is not served for
that long.
"""

from __future__ import annotations

import contextlib
import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.topics import PARTITION, TOPIC, is_topic_name
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.auth import Capability, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.kafka.topics import Partition, Topic
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator

MECHANISMS: Final = ("PLAIN", "OAUTHBEARER")
"""Of SASL."""

_PLAIN_PARTS: Final = 3
_BURST_S: Final = 1.0
"""What a caller that was quiet may send at once, as time at its rate."""
_CALLERS_MAX: Final = 4096
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
    def principal(self) -> str:
        """Who owns what the client makes: the subject of its token; without one, all tokens with the same claims."""
        claims = self._now
        text = f"{int(claims.capability)} {claims.selector!r}"
        text = f"subject {claims.subject}" if claims.subject else text
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

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
        claims = self._now
        if not claims.capability & capability or not claims.match(_new_labels(topic, prefix)):
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

    def check_group(
        self, capability: Capability = Capability.READ, *, of_all: bool = False
    ) -> None:
        """Raises: KafkaError: the client may do nothing with groups, or not this with groups of others."""
        self.check_any(capability, ErrorCode.group_authorization_failed, of_all=of_all)


def may_subject(
    claims: Claims, capability: int, subject: str, topics: Mapping[str, Topic], prefix: str
) -> bool:
    """Whether a token allows something with a subject of schemas: what it allows with the topic of the subject.

    Subjects other than ``<topic>-key`` and ``<topic>-value`` need a token for all journals.

    Args:
        capability: one of these is enough.
        topics: that exist, by name.
        prefix: of journals of topics that clients make.
    """
    if not claims.capability & capability or claims.is_for_all:
        return bool(claims.capability & capability)
    name = (
        subject.removesuffix("-value")
        if subject.endswith("-value")
        else subject.removesuffix("-key")
    )
    if name == subject or not is_topic_name(name):
        return False
    topic = topics.get(name)
    if topic is None:
        return claims.match(_new_labels(name, prefix))
    seen = [
        claims.match(each.listing.spec.label_set_with_name()) for each in topic.partitions.values()
    ]
    return all(seen) if capability in {Capability.APPEND, Capability.APPLY} else any(seen)


def _new_labels(topic: str, prefix: str) -> LabelSet:
    """Of the first journal of a topic that a client would make."""
    return LabelSet.of({"name": f"{prefix}{topic}/part=000", TOPIC: topic, PARTITION: "0"})


@final
class Quota:
    """The same rate for each caller.

    Attributes:
        limit: bytes a second; 0: none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # By caller: when it has waited for all that it took.
        self._paid_at: dict[str, float] = {}

    def take(self, caller: str, size: int, now: float) -> float:
        """Count bytes. Returns: how long the caller has to wait from now on, in seconds."""
        if not self.limit:
            return 0.0
        paid_at = max(self._paid_at.pop(caller, 0.0), now - _BURST_S) + size / self.limit
        if len(self._paid_at) >= _CALLERS_MAX:
            self._forget(now)
        self._paid_at[caller] = paid_at
        return max(0.0, paid_at - now)

    def _forget(self, now: float) -> None:
        """Forget callers that were quiet; if there is none, the one that came longest ago."""
        quiet = [caller for caller, at in self._paid_at.items() if at <= now - _BURST_S]
        for caller in quiet or [next(iter(self._paid_at))]:
            del self._paid_at[caller]


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
