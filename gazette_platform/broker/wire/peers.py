"""Connections to other brokers of the cluster, and the tokens of calls over them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.client.auth import Authorizer
from gazette_platform.client.config import ClientConfig
from gazette_platform.client.route_cache import Condition
from gazette_platform.client.wire import condition_of
from gazette_platform.ops.keepalive import keepalive_options
from gazette_platform.protocol import endpoint_grpc_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol.auth import Capability

__all__ = ["Peers"]

_log = logging.getLogger(__name__)

# Milliseconds between attempts to reach a peer that restarts, as in Gazette; and for one attempt.
_RECONNECT_MS_MAX = 500
_CONNECT_MS = 4000

# Pings while a call is open. Each has to be answered before the next one is due, but a busy machine
# is given a second at least.
_PINGS_PER_LEASE = 4
_PING_TIMEOUT_S_MIN = 1.0

# Bytes that we hold of a forwarded read whose client has stopped: two messages of the usual size.
# Eight times as much was no faster when measured over loopback.
_READ_AHEAD_BYTES = 1 << 20

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
        self._credentials = grpc.ssl_channel_credentials(
            tls.ca or None, tls.key or None, tls.cert or None
        )
        self._authorizer = Authorizer(ClientConfig(auth_keys=config.auth_keys), clock)
        self._channels: dict[str, aio.Channel] = {}
        # Endpoints that are not pinged any more, with their former channels, which ping.
        self._unpinged: dict[str, aio.Channel] = {}
        self._observer: Callable[[str], None] | None = None

    def observe_failures(self, observer: Callable[[str], None]) -> None:
        """Call `observer` with the endpoint of each call that fails. There is one observer."""
        self._observer = observer

    def channel(self, endpoint: str) -> aio.Channel:
        """The channel to a peer.

        Args:
            endpoint: URL in its BrokerSpec.

        Raises: ValidationError: it is no such URL.
        """
        channel = self._channels.get(endpoint)
        if channel is None:
            target, is_secure = endpoint_grpc_address(endpoint)
            options = _options(self._config, pings=endpoint not in self._unpinged)
            channel = (
                aio.secure_channel(target, self._credentials, options=options)
                if is_secure
                else aio.insecure_channel(target, options=options)
            )
            self._channels[endpoint] = channel
        return channel

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to a peer. Opens no connection."""
        channel = self._channels.get(endpoint)
        return Condition.UNKNOWN if channel is None else condition_of(channel)

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


def _options(config: BrokerConfig, *, pings: bool) -> list[tuple[str, int]]:
    interval_s = config.etcd_lease_s / _PINGS_PER_LEASE
    timeout_s = max(_PING_TIMEOUT_S_MIN, interval_s)
    return [
        *(keepalive_options(interval_s, timeout_s) if pings else ()),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
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
