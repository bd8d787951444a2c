"""Makes a backup: all keys of etcd that belong to no process, as of one revision."""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from typing import TYPE_CHECKING, Final

from gazette_platform.broker.backup.file import (
    BackupWriter,
    Cluster,
    Header,
    Record,
    Summary,
    journal_of,
    kind_of,
)
from gazette_platform.broker.etcd_records import (
    PLATFORM_KEYS,
    cluster_of_history,
    history_key,
    restored_key,
    restoring_key,
)
from gazette_platform.broker.identity import ClusterIdentity, read_identity
from gazette_platform.errors import SetupError
from gazette_platform.etcd import Compacted
from gazette_platform.keyspace import validate_prefix
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from pathlib import Path

    from gazette_platform.etcd import EtcdClient, KeyValue
    from gazette_platform.ops.clock import Clock

_PAGE_KEYS: Final = 500


async def make_backup(
    etcd: EtcdClient,
    path: Path,
    *,
    prefix: str,
    scope: Collection[str] = ("/",),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    clock: Clock | None = None,
) -> Summary:
    """Write the keys of etcd to a file.

    Keys under a lease are left out: members, assignments and whatever else belongs to a process.

    Args:
        etcd: connected.
        path: of the file, which must not exist.
        prefix: of a cluster of brokers. Others that the brokers of this project made are found as well.
        scope: prefixes of keys. The notes that brokers keep beside their keys are always part of it.
        progress: called with the numbers of keys that were read, and of all.

    Raises: EtcdError; SetupError: the file exists or cannot be written, or a restore is not done.
    Cancellation: leaves no file.
    """
    validate_prefix(prefix)
    areas = _areas({*scope, PLATFORM_KEYS})
    first = await etcd.page(PLATFORM_KEYS, page_keys=1, keys_only=True)
    revision, cluster_id = first.header.revision, f"{first.header.cluster_id:x}"
    identities: dict[str, ClusterIdentity] = {}
    clusters = []
    for each in sorted({prefix, *await _with_history(etcd, revision)}):
        if await etcd.get(restoring_key(each), revision=revision) is not None:
            raise SetupError(
                f"the cluster {each} is being restored (finish `gazette restore` first)"
            )
        identities[each] = identity = await read_identity(etcd, each, revision=revision)
        history = identity.history or await _value(etcd, history_key(each), revision)
        clusters.append(Cluster(each, history, identity.cluster or cluster_id, identity.base))
    made_at = (clock or SystemClock()).now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    header = Header(made_at, revision, areas, tuple(clusters))
    writer, kinds, done = BackupWriter(path), Counter[str](), 0
    with writer.opened(header):
        async for kv, of in _keys(etcd, areas, revision):
            done += 1
            progress(done, of)
            record = _record(kv, header, identities)
            if record is not None:
                writer.add(record)
                kinds[kind_of(record.key, header.clusters)] += 1
    return Summary(header, writer.keys, writer.sha256, kinds)


def _record(kv: KeyValue, header: Header, identities: dict[str, ClusterIdentity]) -> Record | None:
    """What the backup has of a key; None: nothing."""
    if kv.lease or cluster_of_history(kv.key):
        return None
    if any(kv.key.startswith(restored_key(prefix)) for prefix in identities):
        return None  # `identity` says it
    found, identity = journal_of(kv.key, header.clusters), 0
    if found is not None:
        cluster, journal = found
        identity = identities[cluster.prefix].revision_of(journal, kv.create_revision)
    return Record(kv.key, kv.value, kv.create_revision, identity)


def _areas(prefixes: Collection[str]) -> tuple[str, ...]:
    """The prefixes, in order, without those that another one covers."""
    found: list[str] = []
    for each in sorted(prefixes):
        if not found or not each.startswith(found[-1]):
            found.append(each)
    return tuple(found)


async def _with_history(etcd: EtcdClient, revision: int) -> list[str]:
    """Prefixes of all clusters that brokers of this project have served."""
    head = history_key("").removesuffix("#")
    found = await etcd.range(head, revision=revision, keys_only=True)
    return [prefix for kv in found.kvs if (prefix := cluster_of_history(kv.key))]


async def _value(etcd: EtcdClient, key: str, revision: int) -> str:
    found = await etcd.get(key, revision=revision)
    return found.value.decode(errors="replace") if found is not None else ""


async def _keys(
    etcd: EtcdClient, areas: Collection[str], revision: int
) -> AsyncIterator[tuple[KeyValue, int]]:
    """All keys of these areas as of a revision, each with how many there are in all."""
    heads = [
        await etcd.page(area, revision=revision, page_keys=1, keys_only=True) for area in areas
    ]
    of = sum(each.count for each in heads)
    for area in areas:
        after, left = "", 1
        while left > 0:
            try:
                page = await etcd.page(area, after=after, revision=revision, page_keys=_PAGE_KEYS)
            except Compacted as err:
                raise SetupError(
                    f"etcd has forgotten revision {revision}, which was being read (run the command again)"
                ) from err
            for kv in page.kvs:
                yield kv, of
            left = page.count - len(page.kvs)
            after = page.kvs[-1].key if page.kvs else ""
