"""The settings of a Kafka gateway, and of one in a process of its own. Needs no extra."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import urlsplit

from typing_extensions import override

from gazette_platform.client import ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import validate_journal_name, validate_store_url
from gazette_platform.serving.config import ServerConfig, check_setting, expect_setting

_PORT_MAX: Final = 65535


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaConfig:
    """What a gateway was asked for. Validated when built.

    Raises: ValidationError: a value is out of range.
    """

    port: int | None = None
    """TCP port of the gateway; 0: any free one; None: there is no gateway."""

    host: str = "127.0.0.1"
    """Address that is bound, and advertised to clients unless `advertise` is given."""

    advertise: str = ""
    """``host:port`` or ``host`` under which clients reach it, if it is not the bound address."""

    prefix: str = "topic/"
    """What the names of journals of topics begin with that clients create."""

    registry: str = ""
    """URL of the registry of schemas, if it is not the gateways' own."""

    registry_port: int | None = None
    """TCP port of the REST API of the gateways' own registry; 0: any free one; None: there is none."""

    auto_create: bool = False
    """Whether a topic that a client produces to is made if it does not exist."""

    partitions: int = 1
    """Of topics whose creator does not say how many."""

    replication: int = 1
    """Of topics whose creator does not say."""

    store: str = ""
    """Fragment store of topics that clients create; empty: that of another journal below `prefix`, or none."""

    fragment_length: int = 1 << 28
    """Of topics that clients create, in bytes."""

    request_bytes_max: int = 100 << 20
    """Largest request, in bytes."""

    buffer_bytes_max: int = 512 << 20
    """Bytes of requests that are held at a time, of all connections."""

    record_bytes_max: int = 16 << 20
    """Largest record, and largest batch before compression is undone, in bytes."""

    produce_quota: int = 0
    """Bytes a second that each caller may produce by this gateway; 0: any number."""

    fetch_quota: int = 0
    """Bytes a second that each caller may fetch from this gateway; 0: any number."""

    idle_s: float = 600.0
    """Seconds after which a connection without requests is closed."""

    def __post_init__(self) -> None:
        """Raises: ValidationError: a value is out of range."""
        for number, flag in ((self.port, "port"), (self.registry_port, "registry-port")):
            if number is not None:
                expect_setting(0 <= number <= _PORT_MAX, f"kafka.{flag}", "0 to 65535", number)
        if self.registry:
            check_setting("kafka.registry", _check_registry, self.registry)
            expect_setting(
                self.registry_port is None,
                "kafka.registry-port",
                "none beside --kafka.registry",
                self.registry_port,
            )
        check_setting("kafka.prefix", validate_journal_name, self.prefix.removesuffix("/"))
        expect_setting(self.prefix.endswith("/"), "kafka.prefix", "a / at the end", self.prefix)
        if self.store:
            check_setting("kafka.store", validate_store_url, self.store)
        for number, flag in (
            (self.partitions, "partitions"),
            (self.replication, "replication"),
            (self.fragment_length, "fragment-length"),
            (self.request_bytes_max, "request-bytes-max"),
            (self.record_bytes_max, "record-bytes-max"),
        ):
            expect_setting(number >= 1, f"kafka.{flag}", "at least 1", number)
        for number, flag in (
            (self.produce_quota, "produce-quota"),
            (self.fetch_quota, "fetch-quota"),
        ):
            expect_setting(number >= 0, f"kafka.{flag}", "at least 0", number)
        expect_setting(
            self.buffer_bytes_max >= self.request_bytes_max,
            "kafka.buffer-bytes-max",
            "at least --kafka.request-bytes-max",
            self.buffer_bytes_max,
        )
        host, colon, port = self.advertise.rpartition(":")
        if colon and not (host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
            raise ValidationError(
                f"expected HOST or HOST:PORT, got {self.advertise!r}", path="kafka.advertise"
            )

    def address(self, bound: int) -> tuple[str, int]:
        """Where clients reach it.

        Args:
            bound: the port that is bound.
        """
        host, colon, port = self.advertise.rpartition(":")
        if colon:
            return host, int(port)
        return self.advertise or self.host, bound


def _check_registry(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValidationError(f"expected http://HOST:PORT or https://HOST, got {parts.scheme}:")


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayConfig(ServerConfig):
    """What `gazette serve-kafka` was asked for: a gateway in a process of its own, whose peers are the brokers.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    flags: ClassVar[str] = "kafka"

    etcd_prefix: str = "/gazette/cluster"
    """Of the brokers."""

    broker_address: str = "http://localhost:8080"
    """URL of a broker, or of several, with commas between them."""

    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    """Of the gateway."""

    @override
    def _check_own(self) -> None:
        try:
            _ = self.brokers  # checked when built
        except ValidationError as err:
            raise err.within("broker") from None

    @property
    def brokers(self) -> ClientConfig:
        """How to reach the brokers."""
        files = self.peer_tls
        return ClientConfig(
            address=self.broker_address,
            zone=self.zone,
            cert_file=str(files.cert_file or ""),
            cert_key_file=str(files.cert_key_file or ""),
            trusted_ca_file=str(files.ca_file or ""),
            auth_keys=self.auth_keys,
        )
