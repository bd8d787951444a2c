"""Who may call this process: verifies the token of each RPC; certificates of its ports, and those that it shows to peers."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import SetupError, ValidationError
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
    from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM contents; empty ones were not given."""

    cert: bytes = b""
    key: bytes = b""
    ca: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """PEM files of one side of a connection.

    Raises: ValidationError: a certificate without its key, or the reverse.
    """

    flags: str
    """What the flags that name them begin with, such as ``broker.server``."""
    cert_file: Path | None = None
    cert_key_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.cert_key_file is None):
            raise ValidationError(
                "a certificate and its key go together: set both, or neither",
                path=f"{self.flags}-cert-file",
            )

    def load(self) -> TlsMaterial:
        """Read the files, and check that certificate and key fit.

        Raises: SetupError: one cannot be read, or is not a PEM of its kind.
        """
        material = TlsMaterial(
            self._read(self.cert_file, "cert-file"),
            self._read(self.cert_key_file, "cert-key-file"),
            self._read(self.ca_file, "ca-file"),
        )
        if self.cert_file is not None or self.ca_file is not None:
            self.server_context()  # gRPC reports a bad file by nothing but a port that fails
        return material

    def server_context(self) -> ssl.SSLContext:
        """For a server of Python's own. Clients must show a certificate if there is a CA.

        Raises: SetupError: a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        path = self.cert_file
        try:
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.cert_key_file)
            if self.ca_file is not None:
                path = self.ca_file
                context.load_verify_locations(self.ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as err:
            raise SetupError(
                f"cannot use {path}: {err.strerror or err} (--{self.flags}-cert-file and "
                f"--{self.flags}-cert-key-file must be PEM and fit each other, "
                f"--{self.flags}-ca-file hold PEM certificates)"
            ) from err
        return context

    def _read(self, path: Path | None, flag: str) -> bytes:
        if path is None:
            return b""
        try:
            return path.read_bytes()
        except OSError as err:
            raise SetupError(
                f"cannot read {path}: {err.strerror} (check --{self.flags}-{flag})"
            ) from err


def http2_context(material: TlsMaterial) -> ssl.SSLContext:
    """Build the context of a port that speaks HTTP/2. Clients must show a certificate if there is a CA.

    Args:
        material: that `TlsFiles.load` has checked.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    _load_chain(context, material)
    if material.ca:
        context.load_verify_locations(cadata=material.ca.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def http2_client_context(material: TlsMaterial) -> ssl.SSLContext:
    """Build the context of connections to ports that speak HTTP/2.

    Args:
        material: that `TlsFiles.load` has checked. Without a CA, those of the machine are trusted.
    """
    context = ssl.create_default_context(cadata=material.ca.decode() or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if material.cert:
        _load_chain(context, material)
    return context


def _load_chain(context: ssl.SSLContext, material: TlsMaterial) -> None:
    # The library loads certificates only from files. This one is in memory: a key belongs on no disk.
    with open(os.memfd_create("tls"), "wb") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(material.cert + b"\n" + material.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
