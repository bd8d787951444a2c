"""Lets other brokers notice that a former instance at our address has crashed, before we listen there.

An instance that crashed leaves its keys in etcd until its lease ends, unless its peers see that its
port refuses connections (see `eviction`). If a new process listened there at once, it would hide the
crash, and the journals would wait for the end of the lease: some twenty seconds instead of one. So the
new process takes the port, so that no other program can, but does not listen until others have looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError
from gazette_platform.keyspace import MemberKey, decode_broker_spec, member_key, parse_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.etcd import EtcdClient
    from gazette_platform.protocol import ProcessId

__all__ = ["await_former"]

_log = logging.getLogger(__name__)

_POLL_S = 0.1


async def await_former(
    etcd: EtcdClient,
    prefix: str,
    process_id: ProcessId,
    endpoint: str,
    *,
    host: str,
    port: int,
    timeout_s: float,
) -> None:
    """Wait, without listening, while etcd has a broker of our id or at our endpoint.

    Args:
        endpoint: our own.
        host: where we are to listen.
        port: where we are to listen.
        timeout_s: seconds after which we go on even if it was not evicted.

    Raises: EtcdError: etcd is out of reach. Cancellation: safe.
    """
    former = await _former(etcd, prefix, process_id, endpoint)
    if former is None:
        return
    with contextlib.suppress(TimeoutError), _held(host, port) as is_ours:
        if not is_ours:
            return  # a living process has the port: nothing to wait for, and listening will fail
        async with asyncio.timeout(timeout_s):
            _log.info("%s is still in etcd: waiting for the others to notice its end", former)
            while True:
                await asyncio.sleep(_POLL_S)
                if await _former(etcd, prefix, process_id, endpoint) is None:
                    return


async def _former(
    etcd: EtcdClient, prefix: str, process_id: ProcessId, endpoint: str
) -> str | None:
    """The key of a former instance that does not say that it leaves; None: there is none."""
    own = member_key(prefix, process_id)
    for kv in (await etcd.range(f"{prefix}/members/")).kvs:
        try:
            key = parse_key(prefix, kv.key)
            assert isinstance(key, MemberKey)
            spec = decode_broker_spec(kv.value, process_id=key.process_id)
        except ValidationError:
            continue
        if not spec.exiting and (kv.key == own or spec.endpoint == endpoint):
            return kv.key
    return None


@contextlib.contextmanager
def _held(host: str, port: int) -> Iterator[bool]:
    """Take a port without listening, so that it refuses connections. Gives: whether it was free."""
    with contextlib.ExitStack() as stack:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            held = stack.enter_context(socket.socket(family))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
        except OSError:
            yield False
        else:
            yield True
