"""Who may call this process: verifies the token of each RPC."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import ValidationError
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol.auth import (
    ALL_CLAIMS,
    LEEWAY_S,
    Claims,
    KeyRing,
    Unauthenticated,
    check_times,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol.auth import Capability

_log = logging.getLogger(__name__)

# Verified tokens that are remembered: clients send one for as long as it is good.
_VERIFIED_MAX = 4096

_SCHEME = "Bearer "


@final
class Authenticator:
    """Verifies tokens against the keys of the cluster.

    Args:
        keys: as `KeyRing` takes them; empty: every call is allowed everything.
        flag: that gave the keys, for errors.

    Raises: ValidationError: a key is malformed, or none is left that could sign.

    Source: errors and their texts are Gazette's (auth/keyed_auth.go).
    """

    def __init__(self, keys: str, clock: Clock, *, flag: str = "broker.auth-keys") -> None:
        self._clock = clock
        try:
            self._keys = KeyRing(keys) if keys.strip() else None
            self.everyone = ALL_CLAIMS if self._keys is None else None
            """What every call is allowed, whatever its token; None: that depends on it."""
        except ValidationError as err:
            raise err.within(flag) from err
        for index in self._keys.short if self._keys is not None else ():
            _log.warning(
                "%s: key %d is so short that it can be guessed from any token that it "
                "signed (make another with `head -c 32 /dev/urandom | base64`)",
                flag,
                index,
            )
        self._verified: Lru[str, tuple[Mapping[str, Any], Claims]] = Lru(_VERIFIED_MAX)

    def authorize(self, metadata: Mapping[str, str], required: Capability) -> Claims:
        """The claims of a call.

        Args:
            metadata: with lower-case names.

        Raises: Unauthenticated: no token, or none that verifies; Forbidden: it lacks `required`.
        """
        if self._keys is None:
            return ALL_CLAIMS
        header = metadata.get("authorization", "")
        if not header:
            if self._keys.admits_all:
                return ALL_CLAIMS
            raise Unauthenticated("missing or empty Authorization token")
        if not header.startswith(_SCHEME):
            raise Unauthenticated("invalid or unsupported Authorization header (expected 'Bearer')")
        claims = self._verify(self._keys, header.removeprefix(_SCHEME))
        claims.require(required)
        return claims

    def remaining_s(self, claims: Claims) -> float | None:
        """Seconds until a call with these claims must end; None: it need not."""
        if claims.expires_at is None:
            return None
        return claims.expires_at + LEEWAY_S - self._clock.now().timestamp()

    def limit(self, claims: Claims) -> asyncio.Timeout:
        """A time-out, to be entered, for the moment at which the claims of a caller expire."""
        return asyncio.timeout(self.remaining_s(claims))

    def _verify(self, keys: KeyRing, token: str) -> Claims:
        now = self._clock.now().timestamp()
        found = self._verified.get(token)
        payload = keys.verify(token) if found is None else found[0]
        check_times(payload, now)
        if found is None:
            found = payload, Claims.from_payload(payload)
            self._verified.put(token, found)
        return found[1]
