"""Authorization of calls: a fixed bearer token, or one signed for each kind of call."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.ops.lru import Lru
from gazette_platform.protocol import LabelSelector, LabelSet, strip_meta
from gazette_platform.protocol.auth import Capability, Claims, KeyRing

if TYPE_CHECKING:
    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock

Metadata = tuple[tuple[str, str], ...]

# Seconds. Applying is rare and powerful, so that its tokens are short-lived.
_LIFETIME_S = {Capability.APPLY: 60}
_LIFETIME_DEFAULT_S = 3600

# A token is replaced when half of its life is over: no call begins with one that is about to
# expire, and a long read that ends with its token goes on with another.
_RENEW_AT = 0.5

# Signed tokens that are kept, for as many kinds of calls and journals.
_TOKENS_MAX = 4096


@final
class Authorizer:
    """Makes the metadata of calls."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._clock = clock
        self._fixed = _bearer(config.auth_token) if config.auth_token else None
        self._keys = KeyRing(config.auth_keys) if config.auth_keys.strip() else None
        self._signed: Lru[tuple[Capability, LabelSelector | str], tuple[float, Metadata]]
        self._signed = Lru(_TOKENS_MAX)

    def metadata(self, capability: Capability, selector: LabelSelector | str) -> Metadata | None:
        """Metadata of a call that needs `capability` for a selector, or for a journal's name."""
        if self._fixed is not None or self._keys is None:
            return self._fixed
        now = self._clock.now().timestamp()
        key = (capability, selector)
        found = self._signed.get(key)
        if found is not None and now < found[0]:
            return found[1]
        lifetime_s = _LIFETIME_S.get(capability, _LIFETIME_DEFAULT_S)
        token = self._keys.sign(
            Claims(capability, _selector(selector)), now=now, lifetime_s=lifetime_s
        )
        metadata = _bearer(token)
        self._signed.put(key, (now + lifetime_s * _RENEW_AT, metadata))
        return metadata


def _bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def _selector(selector: LabelSelector | str) -> LabelSelector:
    if isinstance(selector, LabelSelector):
        return selector
    name = strip_meta(selector)
    return LabelSelector(include=LabelSet.of(name=name)) if name else LabelSelector()
