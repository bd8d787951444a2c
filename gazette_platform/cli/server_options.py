"""Options that every server has, whether it serves journals or shards, and how options of one are named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.cli.option_table import ProcessOption
from gazette_platform.serving.config import Wire

if TYPE_CHECKING:
    from gazette_platform.serving.config import ServerConfig

__all__ = ["ServerOptions"]


@final
@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one kind of server. Its table has them in the order in which help shows them."""

    config: type[ServerConfig]
    """Its settings, which know the group of its flags."""
    what: str
    """Such a server is called, in help texts."""

    def own(self, name: str, kind: type, text: str, field: str = "") -> ProcessOption:
        """An option of the server's own group.

        Args:
            name: without the group, as ``zone``.
            field: of the settings, if it is not called as the option is.
        """
        group, known = self.config.flags, name.replace("-", "_")
        return ProcessOption(
            f"{group}.{name}",
            f"{group}_{known}".upper(),
            kind,
            field or known,
            text,
            self.config,
        )

    def of(
        self, name: str, kind: type, text: str, field: str = "", *, variable: str = ""
    ) -> ProcessOption:
        """An option of another group.

        Args:
            name: with the group, as ``etcd.address``.
            field: of the settings, if it is not called as the option is.
            variable: of the environment, if it is not called as the option is.
        """
        known = name.replace(".", "_").replace("-", "_")
        return ProcessOption(
            name, variable or known.upper(), kind, field or known, text, self.config
        )

    def address(self, host: str, port: ProcessOption) -> tuple[ProcessOption, ...]:
        """Who it is, and where.

        Args:
            host: text of the option of the host that is bound.
            port: of the gRPC service.
        """
        group, what = self.config.flags, self.what
        return (
            self.own("zone", str, f"Availability zone of this {what}."),
            self.own(
                "id",
                str,
                f"Id of this {what} in its zone, at least 4 bytes. Default: two random words.",
            ),
            self.own("host", str, host),
            self.own(
                "advertise",
                str,
                f"URL to advertise, if others reach this {what} by another address than it binds, as "
                f"http://{group}-0.{group}s:8080.",
            ),
            port,
            self.own("http-host", str, "Address that the HTTP port binds to."),
            self.own(
                "http-port", int, "TCP port of HTTP, readiness and metrics; 0 for any free one."
            ),
        )

    def security(self, peers: str, *, them: str = "") -> tuple[ProcessOption, ...]:
        """Certificates of its ports and of connections to peers, and keys of tokens.

        Args:
            peers: they are called.
            them: they are called the second time, if that is to be shorter.
        """
        return (
            self.own(
                "server-cert-file", Path, "PEM certificate of both ports, which then use TLS."
            ),
            self.own("server-cert-key-file", Path, "PEM key of that certificate."),
            self.own(
                "server-ca-file",
                Path,
                "PEM roots to trust for clients, which must then show a certificate.",
            ),
            self.own("peer-cert-file", Path, f"PEM certificate to show to {peers}."),
            self.own("peer-cert-key-file", Path, "PEM key of that certificate."),
            self.own(
                "peer-ca-file",
                Path,
                f"PEM roots to trust for {them or peers}, instead of the system's.",
            ),
            self.own(
                "auth-keys",
                str,
                "Base64 keys: the first signs, any verifies. Add AA== to admit calls without a token. "
                "Default: every call is allowed.",
            ),
        )

    def wire(self, does: str) -> ProcessOption:
        """Who speaks gRPC.

        Args:
            does: what is done by it.
        """
        return self.own(
            "wire",
            Wire,
            f"What {does}: h2 is this program's own HTTP/2, which needs a fraction of the CPU for small calls; "
            "grpc is the gRPC library.",
        )

    def recv_size(self) -> ProcessOption:
        """How large messages may be."""
        return self.own("max-grpc-recv-size", int, "Largest message received, in bytes.")

    def watch_delay(self) -> ProcessOption:
        """How long etcd's events are gathered."""
        return self.own(
            "watch-delay", float, "Time over which etcd events are batched.", "watch_delay_s"
        )

    def drain_timeout(self) -> ProcessOption:
        """When it leaves in any case."""
        return self.own(
            "drain-timeout",
            float,
            "After SIGTERM, how long to wait until others take over. Default: without limit, if there are others.",
            "drain_timeout_s",
        )

    def etcd(self) -> tuple[ProcessOption, ...]:
        """Where etcd is."""
        return (
            self.of("etcd.address", str, "Etcd endpoints, comma-separated: http, https or unix."),
            self.of("etcd.cert-file", Path, "PEM certificate to show to https etcd endpoints."),
            self.of("etcd.cert-key-file", Path, "PEM key of that certificate."),
            self.of(
                "etcd.trusted-ca-file",
                Path,
                "PEM roots to trust for them, instead of the system's.",
            ),
        )

    def lease(self, text: str) -> ProcessOption:
        """How long etcd keeps it."""
        return self.of("etcd.lease", float, text, "etcd_lease_s", variable="ETCD_LEASE_TTL")

    def log(self) -> tuple[ProcessOption, ...]:
        """What its process logs."""
        return (
            self._of_process("log.level", "trace, debug, info, warn, error or fatal.", "warn"),
            self._of_process("log.format", "text, json or color.", "text"),
        )

    def _of_process(self, name: str, text: str, fallback: str) -> ProcessOption:
        variable = name.replace(".", "_").upper()
        return ProcessOption(name, variable, str, "", text, self.config, fallback)
