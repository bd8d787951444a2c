"""Keys of etcd as one file: `gazette backup` makes it, `gazette restore` brings it back.

Nouns: backup (the file), key, cluster (brokers with one etcd prefix), scope (the prefixes that a backup covers).
Guarantee: a backup is of one revision of etcd; a restore never overwrites a key, and can be interrupted and repeated.
Cost: memory for a page of keys, and a number for each journal whose head is noted.

Etcd after a restore is *older than the store*: brokers went on after the backup was made, and nothing in the file says
how far. So a restore keeps what stays true, and leaves out what may be outdated:

    journal specs           restored. Suspended ones are resumed, because only the store's listing shows where they end
    noted heads             restored, as the least offset at which the journal goes on
    registers               not restored: a writer that was fenced since would pass their checks again. A reset sets one,
                            ``gazette-restored``, so that no writer passes a check of what was before
    holders (epochs)        not restored: others may have taken over. A record says so, and appends wait for
                            `gazctl journals reset-head`
    identity of journals    restored, see `ClusterIdentity`: the offsets that clients keep stay valid
    savepoints              restored
    hints, names of logs    restored, before the specs of shards: a shard without hints would begin again
    shard specs             restored last
    members, assignments    not in the file: they belong to processes

No broker joins meanwhile: the key ``restoring`` keeps it out. Each transaction checks that no broker is a member and
creates keys only. An interrupted restore leaves that key, and the next one with the same file goes on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING, Final, final

from gazette_platform.broker.backup.file import (
    BackupFile,
    BackupWriter,
    Cluster,
    Header,
    Record,
    Summary,
    journal_of,
    kind_of,
)
from gazette_platform.broker.epochs import RESTORED, EpochRecord, Released
from gazette_platform.broker.etcd_records import (
    PLATFORM_KEYS,
    ClusterIdentity,
    cluster_of_history,
    epoch_key,
    epochs_prefix,
    history_key,
    identity_key,
    read_identity,
    restored_key,
    restoring_key,
    savepoints_prefix,
)
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.etcd import Compacted, Compare, Delete, Get, Put
from gazette_platform.keyspace import (
    decode_journal_spec,
    encode_journal_spec,
    items_prefix,
    members_prefix,
    validate_prefix,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import LabelSet, SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator
    from pathlib import Path

    from gazette_platform.etcd import EtcdClient, KeyValue
    from gazette_platform.ops.clock import Clock


__all__ = [
    "BackupFile",
    "Cluster",
    "Header",
    "Record",
    "Restore",
    "Summary",
    "make_backup",
    "restore_backup",
]


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


# Etcd takes 128 operations, and as many comparisons, in a transaction. A journal needs two of each.
_BATCH_PUTS: Final = 80
_BATCH_BYTES: Final = 1 << 20
_TRIES: Final = 3
# How far after the backup the revisions of later journals begin: more than etcd can write until it is lost.
_LATER: Final = 1 << 32
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore did."""

    summary: Summary
    written: int
    """Keys that it created; those that an interrupted restore had created are not counted."""
    is_done_before: bool = False
    """Whether etcd had been restored from this file already, and nothing was done."""


async def restore_backup(
    etcd: EtcdClient,
    file: BackupFile,
    *,
    scope: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Restore:
    """Create the keys of a backup.

    Args:
        etcd: connected.
        file: the backup; it is read several times.
        scope: prefixes of the keys to restore; none: all of the backup. They, too, must have no keys.
        progress: called with the numbers of keys that were handled, and of all.

    Raises: DataError, ValidationError: the file is damaged, or of another version; nothing was done. SetupError: etcd
        has keys already, brokers run, or a key was written meanwhile. EtcdError: repeat it.
    Cancellation: leaves a part, and keeps brokers out; repeat it.
    """
    summary = file.verify()
    clusters = tuple(
        each
        for each in summary.header.clusters
        if not scope or any(f"{each.prefix}/".startswith(prefix) for prefix in scope)
    )
    if not clusters:
        known = ", ".join(each.prefix for each in summary.header.clusters)
        raise ValidationError(
            f"no cluster of the backup lies there (it has {known})", path="--prefix"
        )
    restorer = _Restorer(
        etcd, file, summary=summary, clusters=clusters, scope=tuple(scope), progress=progress
    )
    if await restorer.is_done():
        return Restore(summary, 0, is_done_before=True)
    await restorer.begin()
    for stage in ("others", "journals", "shards"):
        await restorer.run(stage)
    await restorer.finish()
    return Restore(summary, restorer.written)


@final
class _Restorer:
    def __init__(
        self,
        etcd: EtcdClient,
        file: BackupFile,
        *,
        summary: Summary,
        clusters: tuple[Cluster, ...],
        scope: tuple[str, ...],
        progress: Callable[[int, int], None],
    ) -> None:
        self._etcd = etcd
        self._file = file
        self._summary = summary
        self._clusters = clusters
        self._scope = scope or summary.header.scope
        self._progress = progress
        # Two restores of one file are the same only if they restore the same keys.
        self._mark = " ".join((summary.sha256, *sorted(scope)))
        self._handled = 0
        self._fence = LabelSet.of({RESTORED: summary.sha256[:16]})
        self._heads: dict[str, tuple[int, int]] = {}
        self.written = 0

    # ---------------------------------------------------------------------------- begin and end
    async def is_done(self) -> bool:
        """Whether all clusters were restored from this file."""
        known = [
            await read_identity(self._etcd, each.prefix, is_with_journals=False)
            for each in self._clusters
        ]
        return all(each.backup == self._mark for each in known)

    async def begin(self) -> None:
        """Keep brokers out. Raises: SetupError: etcd is not empty."""
        keys = [restoring_key(each.prefix) for each in self._clusters]
        found = [await self._etcd.get(key) for key in keys]
        if all(each is not None for each in found):
            for key, each in zip(keys, found, strict=True):
                if each is not None and each.value.decode(errors="replace") != self._mark:
                    raise SetupError(
                        "a restore of another backup, or with another --prefix, was interrupted (finish it as it was "
                        f"begun; or delete all keys that it wrote, and {key})"
                    )
            return
        await self._require_empty()
        compares = [Compare.create(key, 0) for key in keys]
        for one in self._clusters:
            compares.append(Compare.none_since(members_prefix(one.prefix), 0))
            compares.append(Compare.none_since(items_prefix(one.prefix), 0))
        result = await self._etcd.txn(compares, [Put(key, self._mark.encode()) for key in keys])
        if not result.succeeded:
            raise SetupError(
                "a broker, or another restore, began meanwhile; nothing was restored (stop it)"
            )

    async def _require_empty(self) -> None:
        for each in self._clusters:
            members = await self._etcd.page(
                members_prefix(each.prefix), page_keys=_NAMED_MAX, keys_only=True
            )
            if members.count:
                raise SetupError(
                    f"{members.count} brokers run in the cluster {each.prefix}, such as {members.kvs[0].key}; "
                    "nothing was restored (stop them, and restore into an empty etcd)"
                )
        for area in self._areas():
            found = await self._found(area)
            if found:
                raise SetupError(
                    f"etcd has keys already: {', '.join(found)}; nothing was restored (restore into an empty etcd; or "
                    "name by --prefix what to restore, if these keys belong to something else)"
                )

    async def _found(self, area: str) -> list[str]:
        """Some keys of an area, without those that a broker wrote which once found etcd empty."""
        after, left = "", 1
        found: list[str] = []
        while left > 0 and len(found) < _NAMED_MAX:
            page = await self._etcd.page(area, after=after, keys_only=True)
            found += [kv.key for kv in page.kvs if not cluster_of_history(kv.key)]
            left = page.count - len(page.kvs)
            after = page.kvs[-1].key if page.kvs else ""
        return found[:_NAMED_MAX]

    def _areas(self) -> list[str]:
        """What is restored, as prefixes of keys."""
        areas = [area for area in self._scope if not area.startswith(PLATFORM_KEYS)]
        if "/" in areas:
            return areas
        for each in self._clusters:
            areas += [
                epochs_prefix(each.prefix),
                savepoints_prefix(each.prefix),
                restored_key(each.prefix),
            ]
        return areas

    async def finish(self) -> None:
        """Let brokers in. Raises: SetupError."""
        writes: list[Put | Delete] = []
        for each in self._clusters:
            base = each.base + self._summary.header.revision + _LATER
            identity = ClusterIdentity(each.history, each.id, base, self._mark)
            writes.append(Put(restored_key(each.prefix), identity.encode()))
            writes.append(Delete(restoring_key(each.prefix)))
        if not (await self._etcd.txn(self._guards(), writes)).succeeded:
            raise _disturbed()

    # ------------------------------------------------------------------------------------- keys
    async def run(self, stage: str) -> None:
        """Create the keys of one stage. Raises: SetupError, EtcdError."""
        batch: list[Record] = []
        size = 0
        for record in self._records(stage):
            if batch and (size + len(record.value) > _BATCH_BYTES or len(batch) * 2 >= _BATCH_PUTS):
                await self._write_batch(stage, batch)
                batch, size = [], 0
            batch.append(record)
            size += len(record.value)
        if batch:
            await self._write_batch(stage, batch)

    def _records(self, stage: str) -> Iterator[Record]:
        areas = tuple(self._areas())
        for record in self._file.records():
            kind = kind_of(record.key, self._summary.header.clusters)
            if not record.key.startswith(areas) or kind == "notes of brokers":
                continue
            if kind == "epochs":
                self._note_head(record, stage)
            elif stage == (kind if kind in {"journals", "shards"} else "others"):
                yield record

    def _note_head(self, record: Record, stage: str) -> None:
        """Remember how far a journal went at the least."""
        if stage != "others":
            return
        with contextlib.suppress(ValueError):  # then brokers could not read it either
            epoch = EpochRecord.decode(record.value)
            heads = [past.end for past in epoch.past]
            heads += [each.head for each in (epoch.released, epoch.saved) if each is not None]
            if heads:
                self._heads[record.key] = (epoch.create_revision, max(heads))

    async def _write_batch(self, stage: str, batch: list[Record]) -> None:
        if stage == "journals":
            await self._write_journals(batch)
        else:
            await self._create([Put(each.key, each.value) for each in batch])
        self._handled += len(batch)
        self._progress(self._handled, self._summary.keys)

    async def _write_journals(self, batch: list[Record]) -> None:
        puts, names = [], {}
        for each in batch:
            found = journal_of(each.key, self._clusters)
            if found is None:
                continue  # of a cluster that is not restored
            cluster, journal = found
            names[each.key] = epoch_key(cluster.prefix, journal)
            puts.append(Put(each.key, self._spec(each, cluster, journal)))
            puts.append(Put(identity_key(cluster.prefix, journal), str(each.identity).encode()))
        created = await self._create(puts)
        # Its record names the revision that created the spec, so it is written after it. No broker can join between.
        await self._create(
            [
                Put(
                    record,
                    EpochRecord(
                        created[key], 1, (), saved=Released(0, self._fence), is_restored=True
                    ).encode(),
                )
                for key, record in names.items()
            ]
        )

    def _spec(self, record: Record, cluster: Cluster, journal: str) -> bytes:
        """The spec of a journal, that goes on at the greatest head that the backup knows, or after it."""
        try:
            spec = decode_journal_spec(record.value, name=journal)
        except ValidationError:
            return record.value  # brokers pass it over, and say so
        revision, head = self._heads.get(epoch_key(cluster.prefix, journal), (0, 0))
        head = head if revision == record.created else 0
        if spec.suspend is not None:
            head = max(head, spec.suspend.offset)
        if not head and spec.suspend is None:
            return record.value
        suspend = SuspendSpec(SuspendLevel.NONE, head) if head else None
        return encode_journal_spec(replace(spec, suspend=suspend))

    async def _create(self, puts: list[Put]) -> dict[str, int]:
        """Create keys, unless an interrupted restore has done so. Returns: the create revision of each."""
        created: dict[str, int] = {}
        left = puts
        for _ in range(_TRIES):
            if not left:
                return created
            compares = [*self._guards(), *(Compare.create(put.key, 0) for put in left)]
            result = await self._etcd.txn(compares, left, [Get(put.key) for put in left])
            if result.succeeded:
                self.written += len(left)
                return created | {put.key: result.header.revision for put in left}
            found = {kv.key: kv for read in result.reads for kv in read.kvs}
            for put in left:
                _require_same(put, found.get(put.key))
            if not found:
                raise _disturbed()
            created |= {key: kv.create_revision for key, kv in found.items()}
            left = [put for put in left if put.key not in found]
        if left:
            raise _disturbed()
        return created

    def _guards(self) -> list[Compare]:
        """Conditions of each transaction: this restore is under way, and no broker is a member."""
        guards = []
        for each in self._clusters:
            guards.append(Compare.version(restoring_key(each.prefix), 1))
            guards.append(Compare.none_since(members_prefix(each.prefix), 0))
        return guards


def _require_same(put: Put, found: KeyValue | None) -> None:
    if found is not None and found.value != put.value:
        raise SetupError(
            f"{put.key} was written by something else while the backup was being restored (stop whatever writes to "
            "this etcd, delete that key, and run the command again)"
        )


def _disturbed() -> SetupError:
    return SetupError(
        "a broker joined the cluster, or the restore's own key was deleted, while the backup was being restored (stop "
        "all brokers, and run the command again)"
    )
