"""Authorization of calls: a fixed bearer token, or one signed for each call."""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Any, final

import orjson

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock

__all__ = ["Authorizer", "Capability"]

# `AA==`, a single zero byte, tells brokers to admit calls without a token; it signs nothing.
_ADMIT_ALL = b"\0"
_HEADER = b'{"alg":"HS256","typ":"JWT"}'


class Capability(enum.IntFlag):
    """What a token allows its bearer, as a bit mask in its `cap` claim."""

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16


_LIFETIME_S = {
    Capability.LIST: 3600,
    Capability.APPLY: 60,
    Capability.READ: 3600,
    Capability.APPEND: 3600,
}


@final
class Authorizer:
    """Makes the metadata of calls.

    Raises: ValidationError: `ClientConfig.auth_keys` holds something that is not base64.
    """

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._clock = clock
        self._fixed = (
            (("authorization", f"Bearer {config.auth_token}"),) if config.auth_token else None
        )
        self._key = _signing_key(config.auth_keys)

    def metadata(
        self, capability: Capability, selector: LabelSelector | str
    ) -> tuple[tuple[str, str], ...] | None:
        """Metadata of a call that needs `capability` for a selector, or for a journal's name."""
        if self._fixed is not None or self._key is None:
            return self._fixed
        if isinstance(selector, str):
            name = selector.partition(";")[0]
            selector = LabelSelector(include=LabelSet.of(name=name)) if name else LabelSelector()
        issued_at = int(self._clock.now().timestamp())
        claims = {
            "cap": int(capability),
            "sel": {
                "include": {"labels": _labels(selector.include)},
                "exclude": {"labels": _labels(selector.exclude)},
            },
            "exp": issued_at + _LIFETIME_S[capability],
            "iat": issued_at,
        }
        signed = b".".join((_base64url(_HEADER), _base64url(orjson.dumps(claims))))
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        token = b".".join((signed, _base64url(digest))).decode()
        return (("authorization", f"Bearer {token}"),)


def _signing_key(keys: str) -> bytes | None:
    for index, text in enumerate(re.split(r"[,\s]+", keys.strip()) if keys.strip() else ()):
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error as err:
            raise ValidationError(f"key {index} is not base64: {err}", path="auth_keys") from err
        if key != _ADMIT_ALL:
            return key
    return None


def _labels(labels: LabelSet) -> list[dict[str, Any]] | None:
    out: list[dict[str, Any]] = []
    for label in labels.labels:
        entry: dict[str, Any] = {"name": label.name}
        if label.value:
            entry["value"] = label.value
        if label.prefix:
            entry["prefix"] = True
        out.append(entry)
    return out or None


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
