"""Finds, when a broker starts, the spools that processes which ended here have left."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from gazette_platform.broker.side_keys import history_key, own_member_key
from gazette_platform.errors import SetupError
from gazette_platform.etcd import Compare, Put
from gazette_platform.fragment.recovery import recover
from gazette_platform.fragment.spool_home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.leftovers import Leftovers
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.protocol import ProcessId

__all__ = ["recover_spools", "take_homes"]

_log = logging.getLogger(__name__)


async def history_of(etcd: EtcdClient, prefix: str) -> str:
    """The id of etcd's data, which is written if there is none: then etcd is new, or lost what it had.

    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    key = history_key(prefix)
    new = secrets.token_hex(8)
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
    revoke the leases, and nobody has to wait. The process of a copied home may be alive.

    Returns: at least one; new spools are begun in the first, which is no copy.
    Raises: SetupError, EtcdError.
    Cancellation: the homes stay ours until this process ends.
    """
    found = await etcd.range(own_member_key(config.etcd_prefix, process_id))
    cluster = f"{found.header.cluster_id:x}{config.etcd_prefix}"
    owner = Owner(cluster, process_id.name, boot_id())
    homes = sorted(free_homes(config.spool_dir, owner), key=lambda home: home.is_copied)
    if not homes or homes[0].is_copied:
        homes.insert(0, SpoolHome.make(config.spool_dir, owner))
    history = await history_of(etcd, config.etcd_prefix)
    for home in homes:
        home.history = history
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
