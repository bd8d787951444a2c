"""What a broker does, as it starts, about processes that ended here: it lets peers notice, and takes their spools.

An instance that crashed leaves its keys in etcd until its lease ends, unless its peers see that its port refuses
connections (see `eviction`). If a new process listened there at once, it would hide the crash, and the journals would
wait for the end of the lease: some twenty seconds instead of one. So the new process takes the port, which keeps
other programs away from it, but does not listen until others have looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from typing import TYPE_CHECKING

from gazette_platform.broker.etcd_records import history_key, own_member_key
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import MemberKey, decode_broker_spec, member_key, parse_key
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.spool.leftovers import Leftovers
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.protocol import ProcessId

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
        # One that says that it leaves is not watched for a crash, so nobody would end it: its lease
        # does.
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
            # Connections of the former process may linger in TIME_WAIT; they must not make the port
            # look taken.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
        except OSError:
            yield False
        else:
            yield True


async def history_of(etcd: EtcdClient, prefix: str) -> str:
    """The id of etcd's data, which is written if there is none: then etcd is new, or lost what it had.

    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    key = history_key(prefix)
    new = secrets.token_hex(8)
    # One transaction, so that of brokers which start together one writes the id, and all read the
    # same.
    result = await etcd.txn([Compare.create(key, 0)], [Put(key, new.encode())])
    if result.succeeded:
        return new
    found = await etcd.get(key)
    return found.value.decode(errors="replace") if found is not None else ""


async def take_homes(
    etcd: EtcdClient, config: BrokerConfig, process_id: ProcessId
) -> list[SpoolHome]:
    """Take over the homes of spools whose processes have ended; make an empty one if there are none.

    In etcd those processes are members until their leases end. Where we know that they have ended, we
    revoke the leases, and no journal has to wait. The process of a copied home may be alive.

    Returns: at least one; new spools are begun in the first, which is not a copy.
    Raises: SetupError, EtcdError.
    Cancellation: the homes stay ours until this process ends.
    """
    found = await etcd.range(own_member_key(config.etcd_prefix, process_id))
    cluster = f"{found.header.cluster_id:x}{config.etcd_prefix}"
    owner = Owner(cluster, process_id.name, boot_id())
    # New spools go to the first home, and in a copy no tenure begins: whoever finds it next has to
    # see a copy, too.
    homes = sorted(free_homes(config.spool_dir, owner), key=lambda home: home.is_copied)
    if not homes or homes[0].is_copied:
        homes.insert(0, SpoolHome.make(config.spool_dir, owner))
    history = await history_of(etcd, config.etcd_prefix)
    for home in homes:
        home.history = history
    # Only where the machine itself proves the end. A broker that was started on a copy of a living
    # broker's folder once revoked the lease named in it, and ended that broker.
    leases = {home.former.lease for home in homes if home.former and home.former_has_ended}
    for home in homes:
        if home.former and home.is_copied:
            _log.warning(
                "%s is a copy of a folder of broker %s, which may have gone on since: what it says of "
                "journals is kept, and neither served nor stored (if the folder of that broker is lost, "
                "`gazctl journals reset-head` stores what only the copy has)",
                home.folder,
                home.former.process,
            )
    for lease in leases - {0}:
        if await etcd.revoke_lease(lease):
            _log.info("ended the lease of a broker that has crashed here")
    return homes


async def recover_spools(homes: list[SpoolHome], leftovers: Leftovers, executor: Executor) -> None:
    """Read what is in homes that were taken over.

    Raises: SetupError: a home cannot be read.
    Cancellation: safe; no thread reads any more.
    """
    for home in homes:
        if home.former is None:
            continue
        try:
            for found in await run_in(executor, recover, home):
                leftovers.add(found)
        except OSError as err:
            raise SetupError(
                f"cannot read the spools in {home.folder}: {err} (mend the disk, or move that folder away; "
                "what only it holds is not served meanwhile)"
            ) from err
    if len(leftovers):
        _log.info("found spools of %d journals that former processes left", len(leftovers))
