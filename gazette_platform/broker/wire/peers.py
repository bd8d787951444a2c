"""Connections to other brokers of the cluster, and the tokens of calls over them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from gazette_platform.client.auth import Authorizer
from gazette_platform.client.config import ClientConfig
from gazette_platform.ops.network import keepalive_options
from gazette_platform.protocol import endpoint_grpc_address
from gazette_platform.serving.config import Wire
from gazette_platform.serving.grpc_channel import GrpcChannel
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.limits import PEER_LIMITS
from gazette_platform.serving.interface import Condition
from gazette_platform.serving.tls import http2_client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol.auth import Capability
    from gazette_platform.serving.interface import OutgoingChannel

__all__ = ["Peers"]

_log = logging.getLogger(__name__)

# Milliseconds between attempts to reach a peer that restarts, as in Gazette; and for one attempt.
_RECONNECT_MS_MAX = 500
_CONNECT_MS = 4000

# Pings while a call is open. Each has to be answered before the next one is due, but a busy machine
# is given a second at least.
_PINGS_PER_LEASE = 4
_PING_TIMEOUT_S_MIN = 1.0

# Next to no limit: a peer sends what it has of a journal.
_MESSAGE_BYTES_MAX = 1 << 30

# In the text of the error with which a server ends a connection, and all calls on it, because of
# pings without data between them. Our servers take any number. Those of Go take two in five minutes,
# unless they are told otherwise.
_TOO_MANY_PINGS = "too many pings"


@final
class Peers:
    """One channel per peer endpoint, opened at first use.

    The scheme of the endpoint decides whether the peer speaks TLS. Keepalive notices a peer that froze
    within half a lease. If a peer does not stand pings, only the end of its lease shows that it froze.

    Raises: SetupError: a TLS file cannot be used. ValidationError: a key is malformed.
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        tls = config.peer_tls.load()
        self._tls = tls
        self._tls_context: ssl.SSLContext | None = None
        self._authorizer = Authorizer(ClientConfig(auth_keys=config.auth_keys), clock)
        self._channels: dict[str, OutgoingChannel] = {}
        # Endpoints that are not pinged any more, with their former channels, which ping.
        self._unpinged: dict[str, OutgoingChannel] = {}
        self._observer: Callable[[str], None] | None = None

    def observe_failures(self, observer: Callable[[str], None]) -> None:
        """Call `observer` with the endpoint of each call that fails. There is one observer."""
        self._observer = observer

    def channel(self, endpoint: str) -> OutgoingChannel:
        """The channel to a peer.

        Args:
            endpoint: URL in its BrokerSpec.

        Raises: ValidationError: it is no such URL.
        """
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._open(endpoint)
            self._channels[endpoint] = channel
        return channel

    def _open(self, endpoint: str) -> OutgoingChannel:
        target, is_secure = endpoint_grpc_address(endpoint)
        pings = endpoint not in self._unpinged
        if self._config.wire is Wire.GRPC:
            tls = self._tls if is_secure else None
            return GrpcChannel(target, _options(self._config, pings=pings), tls)
        if is_secure and self._tls_context is None:
            self._tls_context = http2_client_context(self._tls)
        dialing = _dialing(self._config, pings=pings)
        return Channel(target, dialing, self._tls_context if is_secure else None)

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to a peer. Opens no connection."""
        channel = self._channels.get(endpoint)
        return Condition.UNKNOWN if channel is None else channel.condition

    def metadata(self, capability: Capability, journal: str) -> tuple[tuple[str, str], ...] | None:
        """Metadata of a call to a peer: a token of ours for this journal; None without keys."""
        return self._authorizer.metadata(capability, journal)

    def on_failure(self, endpoint: str, details: str) -> None:
        """Note that a call to a peer failed. If that was because of our pings, it gets no more.

        Args:
            details: of the error.
        """
        if self._observer is not None:
            self._observer(endpoint)
        is_for_pings = _TOO_MANY_PINGS in details.lower().replace("_", " ")
        if is_for_pings and endpoint not in self._unpinged:
            channel = self._channels.pop(endpoint, None)
            if channel is not None:
                _log.info("broker at %s minds pings: it gets none any more", endpoint)
                self._unpinged[endpoint] = channel  # calls that just began may be on it

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The peers to which there are channels."""
        return tuple(self._channels)

    async def drop(self, endpoint: str) -> None:
        """Close the channel to a peer that left; calls under way are cancelled."""
        for channels in (self._channels, self._unpinged):
            channel = channels.pop(endpoint, None)
            if channel is not None:
                await channel.close()

    async def close(self) -> None:
        """Close every channel; calls under way are cancelled."""
        for endpoint in {*self._channels, *self._unpinged}:
            await self.drop(endpoint)


def _ping_times(config: BrokerConfig) -> tuple[float, float]:
    """Seconds between pings, and for the answer to one."""
    interval_s = config.etcd_lease_s / _PINGS_PER_LEASE
    return interval_s, max(_PING_TIMEOUT_S_MIN, interval_s)


def _dialing(config: BrokerConfig, *, pings: bool) -> Dialing:
    every_s, timeout_s = _ping_times(config)
    return Dialing(
        limits=PEER_LIMITS,
        message_bytes_max=_MESSAGE_BYTES_MAX,
        ping_every_s=every_s if pings else 0.0,
        ping_timeout_s=timeout_s,
        connect_s=_CONNECT_MS / 1000,
        backoff_s_max=_RECONNECT_MS_MAX / 1000,
    )


def _options(config: BrokerConfig, *, pings: bool) -> list[tuple[str, int]]:
    return [
        *(keepalive_options(*_ping_times(config)) if pings else ()),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", PEER_LIMITS.stream_window),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.write_buffer_size", 1 << 20),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]
