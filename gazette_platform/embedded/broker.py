"""A broker as a component: ``gazette serve``, with its files in the platform's folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gazette_platform.embedded.component import Component, answers_http
from gazette_platform.embedded.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.embedded.layout import PlatformDir

__all__ = ["broker_component"]

# Enough for three replicas, each in a zone of its own.
_ZONES = ("zone-a", "zone-b", "zone-c")

# The whole platform stops, so no other broker will take over, and there is no use in waiting for long.
_DRAIN_TIMEOUT_S = 20


def broker_component(
    layout: PlatformDir,
    *,
    name: str,
    number: int,
    of: int,
    port: int,
    http_port: int,
    etcd: str,
    requires: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> Component:
    """One broker.

    A lone one is in the zone that clients are in by default; several are spread over three, and
    relieve each other when one ends.

    Args:
        name: of the component, and id of the broker.
        number: of the broker, from 1, `of` so many.
        etcd: its address, as a URL.
        environment: variables with credentials of stores, if not those of this process.
    """
    zone = "local" if of == 1 else _ZONES[(number - 1) % len(_ZONES)]
    spool = layout.spool / name
    spool.mkdir(parents=True, exist_ok=True)
    command = (
        sys.executable,
        "-m",
        "gazette_platform.cli.gazette",
        "serve",
        f"--broker.zone={zone}",
        f"--broker.id={name}",
        f"--broker.host={HOST}",
        f"--broker.port={port}",
        f"--broker.http-host={HOST}",
        f"--broker.http-port={http_port}",
        f"--broker.file-root={layout.fragments}",
        f"--broker.spool-dir={spool}",
        f"--broker.drain-timeout={_DRAIN_TIMEOUT_S}s",
        f"--etcd.address={etcd}",
        "--etcd.prefix=/gazette/cluster",
        "--etcd.lease=20s",
        "--log.level=info",
    )
    return Component(
        name=name,
        command=command,
        requires=requires,
        environment=dict(environment or {}),
        ports=(port, http_port),
        ready=lambda: answers_http(f"http://{HOST}:{http_port}/debug/ready"),
        start_timeout_s=60.0,
        stop_timeout_s=_DRAIN_TIMEOUT_S + 25.0,
    )
