"""Connections to other brokers of the cluster, and the tokens of calls over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.client.auth import Authorizer
from gazette_platform.client.config import ClientConfig
from gazette_platform.client.route_cache import Condition
from gazette_platform.client.wire import condition_of
from gazette_platform.protocol import endpoint_grpc_address

if TYPE_CHECKING:
    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol.auth import Capability

__all__ = ["Peers"]

# A peer that restarts is dialed again at this pace.
_RECONNECT_MS_MAX = 500
_CONNECT_MS = 4000


@final
class Peers:
    """One channel per peer endpoint, opened at first use.

    Its scheme decides whether a peer speaks TLS. A peer that froze is noticed by keepalive within
    half a lease.

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

    def channel(self, endpoint: str) -> aio.Channel:
        """The channel to a peer.

        Args: endpoint: URL out of its BrokerSpec. Raises: ValidationError: it is none.
        """
        channel = self._channels.get(endpoint)
        if channel is None:
            target, is_secure = endpoint_grpc_address(endpoint)
            options = _options(self._config)
            channel = (
                aio.secure_channel(target, self._credentials, options=options)
                if is_secure
                else aio.insecure_channel(target, options=options)
            )
            self._channels[endpoint] = channel
        return channel

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to a peer; opens none."""
        channel = self._channels.get(endpoint)
        return Condition.UNKNOWN if channel is None else condition_of(channel)

    def metadata(self, capability: Capability, journal: str) -> tuple[tuple[str, str], ...] | None:
        """Metadata of a call to a peer: a token of ours for this journal; None without keys."""
        return self._authorizer.metadata(capability, journal)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Of the peers that there are channels to."""
        return tuple(self._channels)

    async def drop(self, endpoint: str) -> None:
        """Close the channel to a peer that left; calls under way are cancelled."""
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close every channel; calls under way are cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


def _options(config: BrokerConfig) -> list[tuple[str, int]]:
    keepalive_ms = max(1000, int(config.etcd_lease_s * 1000 / 4))
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.write_buffer_size", 1 << 20),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]
