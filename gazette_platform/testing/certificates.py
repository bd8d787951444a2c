"""A certificate authority for tests: certificates of its own, made by the machine's openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple, final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Certificate", "CertificateAuthority"]

_DEADLINE_S = 30.0
_DAYS = "30"

_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {common_name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[holder]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {alternatives}
"""


class Certificate(NamedTuple):
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


@final
class CertificateAuthority:
    """Signs certificates that only the holder of `ca` trusts.

    Args:
        folder: for its files; exists.

    Raises: SetupError: there is no openssl on PATH, or it failed.
    """

    def __init__(self, folder: Path, *, name: str = "test authority") -> None:
        found = os.environ.get("GAZETTE_OPENSSL") or shutil.which("openssl")
        if found is None:
            raise SetupError("openssl is not on PATH (Debian: apt-get install openssl)")
        self._openssl = found
        self._folder = folder
        self._stem = name.replace(" ", "-")
        made = self._make(self._stem, name, "authority")
        self.ca, self._key = made

    def issue(self, name: str, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificate:
        """A certificate for a server at `hosts`, or for a client called `name`."""
        alternatives = ",".join(
            f"IP:{host}" if host.replace(".", "").isdigit() else f"DNS:{host}" for host in hosts
        )
        signed_by = ("-CA", str(self.ca), "-CAkey", str(self._key))
        return self._make(f"{self._stem}-{name}", name, "holder", alternatives, signed_by)

    def _make(
        self,
        stem: str,
        common_name: str,
        section: str,
        alternatives: str = "DNS:localhost",
        signed_by: tuple[str, ...] = (),
    ) -> Certificate:
        config = self._folder / f"{stem}.cnf"
        config.write_text(_CONFIG.format(common_name=common_name, alternatives=alternatives))
        made = Certificate(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        command = [self._openssl, "req", "-x509", "-config", str(config), "-extensions", section]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", _DAYS, "-keyout", str(made.key), "-out", str(made.cert), *signed_by]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        if done.returncode:
            raise SetupError(f"openssl req failed: {done.stderr.strip()}")
        return made
