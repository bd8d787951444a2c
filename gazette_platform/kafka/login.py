"""SaslHandshake and SaslAuthenticate: the password of PLAIN and the bearer token of OAUTHBEARER are tokens as brokers take them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.access import MECHANISMS
from gazette_platform.kafka.wire import API_VERSIONS, Api
from gazette_platform.protocol.auth import Capability, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.wire import Call

_log = logging.getLogger(__name__)

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
