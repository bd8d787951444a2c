"""How the settings of one broker become those of several processes on one host. Pure.

Each process is a broker of its own: a member of the cluster with its own port, which clients and peers
reach directly. They share the zone, so the cluster takes them for one zone; they share the host of
their endpoints, so the allocator takes them for one failure domain.

| setting | in process k |
|---|---|
| `id` | with ``-k`` added; without one, all have the same two random words before it |
| `port`, `http_port`, port of `advertise` | larger by k; any free one if it is 0 |
| `socket` | process 0 has it; others have ``-k`` added to its path |
| `spool_dir` | the same: each process keeps a folder of its own in it, and takes over those of processes that ended, so their number may change |
| `debug_port` | the supervisor's; the processes serve no diagnostics of their own |
| `journal_limit` and all others | the same in each process |
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from gazette_platform.broker.config import BrokerConfig


AUTO: Final = "auto"
_FLAG: Final = "broker.processes"
# More would not fit a host of today, and may be a port that was given by mistake.
_PROCESSES_MAX: Final = 512
_PORT_MAX: Final = 65535


def process_count(text: str, *, cores: int) -> int:
    """Return the number of processes that ``--broker.processes`` asks for.

    Args:
        text: a number, or ``auto``.
        cores: that this process may use.

    Raises: ValidationError: it is neither.

    >>> process_count("3", cores=8), process_count("auto", cores=8)
    (3, 8)
    """
    if text == AUTO:
        return max(1, min(cores, _PROCESSES_MAX))
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _PROCESSES_MAX:
        return int(text)
    raise ValidationError(f"expected 1 to {_PROCESSES_MAX}, or auto, got {text!r}", path=_FLAG)


def configs_of(config: BrokerConfig, count: int, *, fallback_id: str) -> list[BrokerConfig]:
    """Return the settings of each process.

    Args:
        config: of all.
        count: how many, at least 2.
        fallback_id: for ids, if `config` has none.

    Raises: ValidationError: there are not enough ports, or an id becomes too long.
    """
    _check_ports(config, count)
    return [_config_of(config, number, config.id or fallback_id) for number in range(count)]


def _config_of(config: BrokerConfig, number: int, name: str) -> BrokerConfig:
    socket = config.socket
    if socket is not None and number:
        socket = socket.with_name(f"{socket.name}-{number}")
    return replace(
        config,
        id=f"{name}-{number}",
        port=config.port and config.port + number,
        http_port=config.http_port and config.http_port + number,
        advertise=_advertised(config.advertise, number),
        socket=socket,
        debug_port=None,
        debug_private=True,
    )


def _advertised(url: str, number: int) -> str:
    """Return the URL that process `number` advertises. Raises: ValidationError: it has no port."""
    if not url:
        return ""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"{url}-{number}" if number else url
    if parts.port is None:
        raise ValidationError(
            f"{url} has no port; name that of the first process, the others advertise those after it",
            path="broker.advertise",
        )
    host = parts.netloc.rpartition(":")[0]
    return parts._replace(netloc=f"{host}:{parts.port + number}").geturl()


def _check_ports(config: BrokerConfig, count: int) -> None:
    """Raises: ValidationError: ports are beyond the last one, or two ranges of them meet."""
    advertised = urlsplit(config.advertise).port if config.advertise else None
    for first, flag in (
        (config.port, "broker.port"),
        (config.http_port, "broker.http-port"),
        (advertised, "broker.advertise"),
    ):
        if first and first + count - 1 > _PORT_MAX:
            raise ValidationError(
                f"{count} processes take the ports from {first} to {first + count - 1}, and {_PORT_MAX} is "
                "the last; choose a lower one",
                path=flag,
            )
    taken = [(config.port, count, "broker.port"), (config.http_port, count, "broker.http-port")]
    taken.append((config.debug_port or 0, 1, "debug.port"))
    ranges = sorted((first, first + size - 1, flag) for first, size, flag in taken if first)
    for (_, last, flag), (first, _, other) in itertools.pairwise(ranges):
        if first <= last:
            raise ValidationError(
                f"{count} processes take the ports up to {last} for --{flag}; choose one after these",
                path=other,
            )
