"""Channels to the endpoints of one etcd cluster, and which of them is used now."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

from gazette_platform.errors import EtcdError, SetupError, ValidationError
from gazette_platform.etcd import wire
from gazette_platform.ops.network import keepalive_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_platform.ops.clock import Clock


_log = logging.getLogger(__name__)

_DEFAULT_PORT = 2379
# Between rounds over all endpoints. Short, because a fresh etcd is often up within a few rounds.
_ROUND_PAUSE_S = 0.05
# So that one endpoint which never answers does not use up the time for the others.
_CONNECT_S_MAX = 1.5
# etcd answers a ping more frequent than its --grpc-keepalive-min-time (5 s) with a GOAWAY.
_PING_EVERY_S = 6.0
_PING_TIMEOUT_S = 3.0
# A page of a range read holds up to 1,000 values; etcd itself limits a request, not a response.
_MESSAGE_BYTES_MAX = 256 << 20
_CHANNEL_OPTIONS = (
    *keepalive_options(_PING_EVERY_S, _PING_TIMEOUT_S),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # etcd is an internal server: the machine's HTTP proxy has no business in between.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTls:
    """Files for ``https`` endpoints."""

    trusted_ca_file: Path | None = None
    """PEM of the authorities to trust; None: the system's."""
    cert_file: Path | None = None
    """PEM of our certificate, when etcd asks for one."""
    cert_key_file: Path | None = None
    """PEM of its key; both or neither are given."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.cert_key_file is None):
            raise ValidationError(
                "etcd certificate and key go together: set both --etcd.cert-file and "
                "--etcd.cert-key-file, or neither"
            )

    def credentials(self) -> Any:
        """The channel credentials. Raises: SetupError: a file cannot be read."""

        def read(path: Path | None) -> bytes | None:
            return path.read_bytes() if path is not None else None

        try:
            return wire.grpc.ssl_channel_credentials(
                root_certificates=read(self.trusted_ca_file),
                private_key=read(self.cert_key_file),
                certificate_chain=read(self.cert_file),
            )
        except OSError as err:
            raise SetupError(f"etcd TLS file: {err}; check the --etcd.* file flags") from err


def parse_endpoint(text: str) -> tuple[str, bool]:
    """The gRPC target of an endpoint, and whether it wants TLS.

    >>> parse_endpoint("http://10.0.0.1:2379"), parse_endpoint("unix:///run/etcd.sock")
    (('10.0.0.1:2379', False), ('unix:/run/etcd.sock', False))
    >>> parse_endpoint("https://etcd.example")
    ('etcd.example:2379', True)

    Raises: ValidationError: it is not an http, https or unix URL.
    """
    url = urlsplit(text if "://" in text else f"http://{text}")
    if url.scheme == "unix" and (url.path or url.netloc):
        return f"unix:{url.netloc}{url.path}", False
    try:
        port = url.port or _DEFAULT_PORT
    except ValueError as err:
        raise ValidationError(f"bad port of etcd address {text!r}: {err}") from err
    if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
        raise ValidationError(
            f"bad etcd address {text!r}; expected http://host:port, https://host:port or "
            "unix:///path/of/socket"
        )
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{port}", url.scheme == "https"


@dataclass(slots=True)
class _Endpoint:
    url: str
    channel: Any
    stubs: dict[str, Any] = field(default_factory=dict)


@final
class Connection:
    """Hands out a stub on an endpoint that is connected, starting with the one that worked last.

    Nothing is sent before a channel is ready. So a call that fails earlier was certainly not
    executed, and writes may be tried elsewhere without the danger of applying them twice.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: EtcdTls | None, clock: Clock) -> None:
        if not endpoints:
            raise ValidationError("no etcd address given; set --etcd.address")
        self._targets = [(url, *parse_endpoint(url)) for url in endpoints]
        self._tls = tls
        self._clock = clock
        self._endpoints: list[_Endpoint] = []
        self._current = 0

    @property
    def url(self) -> str:
        """The endpoint in use."""
        return self._targets[self._current][0]

    async def stub(self, stub_class: Any, *, deadline: float) -> Any:
        """A stub whose channel is connected.

        Args:
            deadline: of the clock's monotonic seconds.

        Raises: EtcdError: no endpoint could be reached until then.
        Cancellation: safe.
        """
        if not self._endpoints:
            self._open()
        started_at = self._clock.monotonic()
        while True:
            for _ in self._endpoints:
                endpoint = self._endpoints[self._current]
                if await self._is_ready(endpoint.channel, deadline):
                    name = stub_class.__name__
                    if name not in endpoint.stubs:
                        endpoint.stubs[name] = stub_class(endpoint.channel)
                    return endpoint.stubs[name]
                self.rotate()
            if self._clock.monotonic() + _ROUND_PAUSE_S >= deadline:
                waited_s = self._clock.monotonic() - started_at
                raise EtcdError(
                    f"cannot reach etcd at {', '.join(t[0] for t in self._targets)} (tried for "
                    f"{waited_s:.1f} s); check that etcd runs and that --etcd.address names it",
                    told=wire.NO_ANSWER,
                )
            await asyncio.sleep(_ROUND_PAUSE_S)

    def rotate(self) -> None:
        """Prefer the next endpoint from now on."""
        self._current = (self._current + 1) % len(self._targets)

    async def close(self) -> None:
        """Close every channel; calls under way end with CANCELLED."""
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.channel.close(grace=None)

    def _open(self) -> None:
        # Channels belong to the running event loop, hence not in the constructor.
        for url, target, is_tls in self._targets:
            if is_tls:
                credentials = (self._tls or EtcdTls()).credentials()
                channel = wire.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
            else:
                channel = wire.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
            self._endpoints.append(_Endpoint(url, channel))

    async def _is_ready(self, channel: Any, deadline: float) -> bool:
        connectivity = wire.grpc.ChannelConnectivity
        state = channel.get_state(try_to_connect=True)
        if state == connectivity.READY:
            return True
        budget_s = min(_CONNECT_S_MAX, deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(budget_s):
                while state != connectivity.READY:
                    if state in (connectivity.TRANSIENT_FAILURE, connectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True
