"""Etcd as a component: one member, on loopback, with its data kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.embedded import tools
from gazette_platform.embedded.component import Component, answers_http
from gazette_platform.embedded.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "etcd_component"]

NAME = "etcd"


def etcd_component(folder: Path, *, port: int, peer_port: int) -> Component:
    """Etcd with its data in `folder`; the binary is installed if need be."""
    url = f"http://{HOST}:{port}"
    peer = f"http://{HOST}:{peer_port}"
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o700)  # else etcd warns at every start
    command = (
        str(tools.etcd()),
        "--name=gazette",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        # An existing data folder keeps the peer URL it was made with; only the name has to match.
        f"--initial-cluster=gazette={peer}",
        "--initial-cluster-token=gazette-embedded",
        # etcd takes JSON over HTTP at its port otherwise, also from web pages, which cannot speak
        # gRPC. What is left to them is /health, /version and /metrics.
        "--enable-grpc-gateway=false",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    )
    return Component(
        name=NAME,
        command=command,
        ports=(port, peer_port),
        ready=lambda: answers_http(f"{url}/health"),
        start_timeout_s=30.0,
        stop_timeout_s=10.0,
    )
