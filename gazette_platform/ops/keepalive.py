"""Settings by which one side of a gRPC connection notices that the other side is gone."""

from __future__ import annotations

__all__ = ["keepalive_options"]


def keepalive_options(interval_s: float, timeout_s: float) -> tuple[tuple[str, int], ...]:
    """Channel or server options: pings while calls are open, and what an unanswered one means.

    A ping waits behind content that is on its way: `timeout_s` has to cover that on a slow link.

    Args:
        interval_s: seconds without anything received before a ping is sent.
        timeout_s: seconds without an answer to it after which the connection counts as broken.
    """
    timeout_ms = int(timeout_s * 1000)
    return (
        ("grpc.keepalive_time_ms", int(interval_s * 1000)),
        # gRPC has a timeout for pings of any kind, too (by default 60 s), and the shorter of the two
        # counts. That of keepalive is also set on the TCP socket, for data that is not acknowledged.
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )
