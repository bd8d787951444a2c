"""Certificates of a server's ports, and those that it shows to peers."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gazette_platform.errors import SetupError, ValidationError

if TYPE_CHECKING:
    from pathlib import Path


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
