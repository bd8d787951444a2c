"""Other time limits for the gRPC port of a broker, whoever serves it."""

from __future__ import annotations

from dataclasses import replace

from gazette_platform.serving import grpc_transport
from gazette_platform.serving.h2 import frames
from gazette_platform.serving.h2.server import H2Server


def limit_stalls(monkeypatch, broker, stall_s):
    """Let a running broker wait less for callers that take or send nothing."""
    monkeypatch.setattr(grpc_transport, "_STALL_S", stall_s)
    if isinstance(broker._server, H2Server):
        shared = broker._server._shared
        shared.limits = replace(shared.limits, stall_s=stall_s)
        for connection in shared.connections:
            connection.limits = shared.limits


def limit_pings(monkeypatch, *, every_s, timeout_s):
    """Let brokers that are yet to start ping silent callers sooner."""
    monkeypatch.setattr(grpc_transport, "_PING_EVERY_S", every_s)
    monkeypatch.setattr(grpc_transport, "_PING_TIMEOUT_S", timeout_s)
    changed = replace(frames.LIMITS, ping_every_s=every_s, ping_timeout_s=timeout_s)
    monkeypatch.setattr(frames, "LIMITS", changed)
