"""Tokens: what their bearer may do, and the keys that sign and verify them.

A token is a JWT whose claims are a mask of capabilities and a label selector. It lets its bearer
do these things to the journals that the selector matches, until it expires. Keys are symmetric and
shared by all brokers and by the clients that sign for themselves. The first key of a list signs, and
any of them verifies, so keys are rotated by putting a new one first, one process after the other.

Nothing here reads a clock or a file: callers pass the time.
"""

from __future__ import annotations

import base64
import enum
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self, final

import orjson
from typing_extensions import override

from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol.forms import selector_json
from gazette_platform.protocol.labels import Label, LabelSelector, LabelSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jwt


LEEWAY_S = 5.0
"""Seconds that the clocks of signers and verifiers may differ."""

# `AA==`, a single zero byte, is not a key. It says that calls without a token are admitted, as long as
# not all clients have theirs.
_ADMIT_ALL = b"\0"

# The claims that are looked at; tokens may have others.
_CLAIMS = ("cap", "sel", "exp", "iat", "nbf", "sub")

# Whoever has seen one token can try keys against it without asking anybody. 2^128 keys are too many to
# try, but what a person can remember is not.
_KEY_BYTES_MIN = 16

_SIGNING_ALGORITHM = "HS256"
_ALGORITHMS = ["HS256", "HS384"]


@cache
def _signatures() -> jwt.PyJWS:
    # Slow to import, and only whoever has keys signs or verifies.
    from jwt import PyJWS  # noqa: PLC0415
    from jwt.algorithms import HMACAlgorithm  # noqa: PLC0415

    class AnyLength(HMACAlgorithm):
        """HMAC with keys of any length, because Gazette takes short ones too."""

        @override
        def check_key_length(self, key: Any) -> None:
            """Accept any length."""

    # The times among the claims are checked here, because PyJWT would use a clock of its own.
    signatures = PyJWS(algorithms=[])
    signatures.register_algorithm("HS256", AnyLength(HMACAlgorithm.SHA256))
    signatures.register_algorithm("HS384", AnyLength(HMACAlgorithm.SHA384))
    return signatures


class Capability(enum.IntFlag):
    """What a token allows its bearer, as a bit mask in its `cap` claim.

    Bits from 65536 on belong to applications.
    """

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16
    REPLICATE = 32
    ALL = (1 << 32) - 1


class Unauthenticated(GazetteError):
    """A call has no token, or one that does not verify. The text of the error is Gazette's."""


class Forbidden(Unauthenticated):
    """A token is valid, but does not allow this call. As in Gazette, its wire code is UNAUTHENTICATED."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a call may do, and to which journals."""

    capability: int = Capability.ALL
    """Mask of `Capability`."""
    selector: LabelSelector = LabelSelector()  # noqa: RUF009  immutable
    """Matches the labels of journals, their implicit ``name`` among them; empty: all."""
    expires_at: float | None = None
    """Unix seconds; None: never."""
    subject: str = ""
    """Who the bearer is, of the claim ``sub``; empty: the token does not say."""

    def require(self, capability: Capability) -> None:
        """Raises: Forbidden: the capability is not among the claims."""
        if self.capability & capability != capability:
            raise Forbidden(f"authorization is missing required {capability.name} capability")

    def match(self, labels: LabelSet) -> bool:
        """Whether a journal with these labels, its name among them, is within the claims."""
        return self.is_for_all or self.selector.matches(labels)

    @property
    def is_for_all(self) -> bool:
        """Whether all journals are within the claims."""
        return not self.selector.include and not self.selector.exclude

    def payload(self, *, issued_at: int, lifetime_s: int) -> dict[str, Any]:
        """The claims of a token, as JSON has them."""
        return {
            "cap": int(self.capability),
            "sel": selector_json(self.selector),
            "exp": issued_at + lifetime_s,
            "iat": issued_at,
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """The claims of a verified token.

        Raises: Unauthenticated: they are malformed, or their selector has something unknown in it. If
            that were ignored, the token would be good for more journals than was meant.
        """
        payload = _fields(payload, _CLAIMS)
        capability = payload.get("cap", 0)
        if not isinstance(capability, int) or isinstance(capability, bool):
            raise _malformed("cap is not a number")
        if not 0 <= capability <= Capability.ALL:
            raise _malformed("cap is not a mask of 32 bits")
        selector = _fields(_object(payload, "sel"), ("include", "exclude"), where="sel")
        subject = payload.get("sub", "")
        return cls(
            capability,
            LabelSelector(
                _labels_of(_object(selector, "include"), "sel.include"),
                _labels_of(_object(selector, "exclude"), "sel.exclude"),
            ),
            _time_of(payload, "exp"),
            subject if isinstance(subject, str) else "",
        )


ALL_CLAIMS = Claims()
"""The claims of every call while a broker has no keys."""


@final
class KeyRing:
    """Keys that sign and verify tokens.

    Args:
        text: base64 keys, separated by blanks or commas. ``AA==`` admits calls without a token, and
            needs another key beside it.

    Raises: ValidationError: a key is not base64, or there is none.
    """

    def __init__(self, text: str) -> None:
        keys = [_key(index, part) for index, part in enumerate(re.split(r"[,\s]+", text)) if part]
        self._keys = [key for key in keys if key != _ADMIT_ALL]
        self.admits_all = len(self._keys) < len(keys)
        """Whether calls without a token are admitted."""
        self.short = [
            index
            for index, key in enumerate(keys)
            if key != _ADMIT_ALL and len(key) < _KEY_BYTES_MIN
        ]
        """Indices of the keys that are short enough to be guessed. Gazette takes them, and so do we."""
        if not self._keys:
            raise ValidationError(
                "holds no key that could sign (make one with `head -c 32 /dev/urandom | base64`)",
            )

    def sign(self, claims: Claims, *, now: float, lifetime_s: int) -> str:
        """A token, signed by the first key.

        Args:
            claims: of the bearer.
            now: Unix seconds.
            lifetime_s: seconds until it expires.
        """
        payload = claims.payload(issued_at=int(now), lifetime_s=lifetime_s)
        return _signatures().encode(
            orjson.dumps(payload), self._keys[0], algorithm=_SIGNING_ALGORITHM
        )

    def verify(self, token: str) -> Mapping[str, Any]:
        """The payload of a token that one of the keys signed. Its times are not checked.

        Returns: the claims; the names of those known here are in lower case, the others as they came.
        Raises: Unauthenticated: the token is malformed, or no key fits.
        """
        if not token.isascii():
            raise _malformed("it is not ASCII")
        import jwt  # noqa: PLC0415  see `_signatures`

        signatures = _signatures()
        for key in self._keys:
            try:
                raw = signatures.decode(token, key, algorithms=_ALGORITHMS)
                payload = _json(raw)
            except jwt.InvalidSignatureError:
                continue
            except jwt.InvalidAlgorithmError as err:
                raise Unauthenticated(
                    f"verifying Authorization: token signature is invalid: {err} "
                    f"(expected {' or '.join(_ALGORITHMS)})"
                ) from err
            except (jwt.InvalidTokenError, orjson.JSONDecodeError, RecursionError) as err:
                raise _malformed(str(err)) from err
            if not isinstance(payload, dict):
                raise _malformed("the claims are not an object")
            return _fields(payload, _CLAIMS)
        raise Unauthenticated(
            "verifying Authorization: token signature is invalid: signature is invalid"
        )


def check_times(payload: Mapping[str, Any], now: float) -> None:
    """Refuse a token that has expired, or is not valid yet.

    Args:
        payload: of the token.
        now: Unix seconds.

    Raises: Unauthenticated.
    """
    expires_at = _time_of(payload, "exp")
    if expires_at is None:
        problem = "token is missing required claim: exp claim is required"
    elif now >= expires_at + LEEWAY_S:
        problem = "token is expired"
    elif (_time_of(payload, "iat") or 0) > now + LEEWAY_S:
        problem = "token used before issued"
    elif (_time_of(payload, "nbf") or 0) > now + LEEWAY_S:
        problem = "token is not valid yet"
    else:
        return
    raise Unauthenticated(f"verifying Authorization: token has invalid claims: {problem}")


def _key(index: int, text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError as err:  # binascii.Error, or the text is not ASCII
        raise ValidationError(f"key {index} is not base64: {err}") from err
    if not key:
        raise ValidationError(f"key {index} is empty")
    return key


def _json(raw: bytes) -> Any:
    """The value of a payload. Raises: JSONDecodeError; Unauthenticated: a key comes twice.

    If two keys are equal, readers differ in which one counts, and so in what the token allows.
    """
    value = orjson.loads(raw)  # which is strict, and bounds the depth
    json.loads(raw, object_pairs_hook=_refuse_twice, parse_int=len)
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _malformed("a key comes twice in one object")


def _fields(
    holder: Mapping[str, Any], names: tuple[str, ...], *, where: str = ""
) -> dict[str, Any]:
    """The fields of an object. As in Go, upper and lower case of their keys are the same.

    Args:
        holder: the object.
        names: of the fields.
        where: path of the object, if it may have no other fields than `names`; empty: it may.

    Raises: Unauthenticated: there is another field, or one comes twice.
    """
    out: dict[str, Any] = {}
    for key, value in holder.items():
        folded = key.casefold()
        if folded not in names:
            if where:
                raise _malformed(f"{where} has an unknown key {key!r} (known: {', '.join(names)})")
            folded = key
        if folded in out:
            raise _malformed(f"{key!r} comes twice")
        out[folded] = value
    return out


def _malformed(why: str) -> Unauthenticated:
    return Unauthenticated(f"verifying Authorization: token is malformed: {why}")


def _time_of(payload: Mapping[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _malformed(f"{name} is not a number")
    return float(value)


def _object(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = payload.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _malformed(f"{name} is not an object")
    return value


def _labels_of(holder: Mapping[str, Any], where: str) -> LabelSet:
    entries = _fields(holder, ("labels",), where=where).get("labels")
    if entries is None:
        return LabelSet()
    if not isinstance(entries, list):
        raise _malformed("labels is not a list")
    labels = set()
    for entry in entries:
        if not isinstance(entry, dict):
            raise _malformed("a label is not an object")
        label = _fields(entry, ("name", "value", "prefix"), where=f"a label of {where}")
        name, value, prefix = label.get("name"), label.get("value", ""), label.get("prefix", False)
        if not isinstance(name, str) or not isinstance(value, str) or not isinstance(prefix, bool):
            raise _malformed("a label has no name, or a value of another type")
        if not name:
            raise _malformed("a label has an empty name")
        labels.add(Label(name, value, prefix))
    return LabelSet(tuple(sorted(labels)))
