"""Stand-ins for the lake's neighbours: fragment files without a broker, a metastore in memory."""

from __future__ import annotations

import copy
import hashlib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from gazette_platform.codecs import compressor
from gazette_platform.errors import JournalNotFound
from gazette_platform.hive import MetastoreSession, partition_name
from gazette_platform.hive.model import ttypes
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    LabelSelector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["FragmentFiles", "MemoryMetastore"]


class FragmentFiles:
    """A FragmentSource over files that it writes itself, laid out as brokers lay them out.

    Args:
        root: folder that plays the part of a broker's file root, of store ``file:///``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, str, int]] = []
        self._specs: dict[str, JournalSpec] = {}
        self._created: dict[str, int] = {}
        self._revision = 40
        self._fragments: dict[str, list[Fragment]] = {}
        self._contents: dict[tuple[str, int, int], bytes] = {}

    @property
    def roots(self) -> dict[str, str]:
        """The mapping of ``file:///`` to the folder, as for `StoreRoots`."""
        return {"file:///": f"file://{self.root}/"}

    def create(
        self,
        journal: str,
        *,
        codec: CompressionCodec = CompressionCodec.GZIP,
        stores: tuple[str, ...] = ("file:///",),
    ) -> None:
        """A journal without fragments, or with those that it had and other `stores`."""
        self._specs[journal] = JournalSpec(
            name=journal,
            replication=1,
            fragment=FragmentSpec(
                length=1 << 20,
                codec=codec,
                stores=stores,
                refresh_interval_ns=60 * SECOND_NS,
            ),
        )
        self._fragments.setdefault(journal, [])
        if journal not in self._created:
            self._revision += 1
            self._created[journal] = self._revision

    def set_flush_interval(self, journal: str, seconds: int) -> None:
        """Have brokers store what was appended after `seconds` at most; 0: only by length."""
        spec = self._specs[journal]
        fragment = replace(spec.fragment, flush_interval_ns=seconds * SECOND_NS)
        self._specs[journal] = replace(spec, fragment=fragment)

    def append(
        self,
        journal: str,
        content: bytes,
        *,
        postfix: str = "",
        codec: CompressionCodec = CompressionCodec.GZIP,
        is_persisted: bool = True,
        begin: int | None = None,
        mod_time: int = 1,
        store: str = "file:///",
    ) -> Fragment:
        """One fragment, at the end of the journal unless `begin` says where."""
        if journal not in self._specs:
            self.create(journal, codec=codec)
        fragments = self._fragments[journal]
        if begin is None:
            begin = fragments[-1].end if fragments else 0
        fragment = Fragment(
            journal,
            begin,
            begin + len(content),
            sum=hashlib.sha1(content, usedforsecurity=False).digest(),
            codec=codec,
        )
        fragments.append(fragment)
        fragments.sort(key=lambda f: f.begin)
        self._contents[(journal, fragment.begin, fragment.end)] = content
        if not is_persisted:
            return fragment
        return self.persist(fragment, postfix=postfix, mod_time=mod_time, store=store)

    def persist(
        self,
        fragment: Fragment,
        *,
        postfix: str = "",
        mod_time: int = 1,
        store: str = "file:///",
    ) -> Fragment:
        """Write the file of a fragment that was only local. A `store` may be a folder of the root."""
        stored = replace(fragment, backing_store=store, mod_time=mod_time, path_postfix=postfix)
        path = self.root / store.removeprefix("file:///") / stored.content_path
        path.parent.mkdir(parents=True, exist_ok=True)
        codec = compressor(fragment.codec)
        content = self._contents[(fragment.journal, fragment.begin, fragment.end)]
        path.write_bytes(codec.compress(content) + codec.finish())
        fragments = self._fragments[fragment.journal]
        fragments[fragments.index(fragment)] = stored
        return stored

    def relist(self, journal: str) -> None:
        """Have what is listed of a journal be where its files are by now, as after brokers' next listing."""
        listed = self._fragments[journal]
        for index, fragment in enumerate(listed):
            store = self.root / fragment.backing_store.removeprefix("file:///")
            for path in (store / journal).rglob(fragment.content_name):
                postfix = str(path.parent.relative_to(store / journal)).removeprefix(".")
                listed[index] = replace(fragment, path_postfix=postfix)

    def forget(self, fragment: Fragment) -> None:
        """Take a fragment out of the listing; its file stays."""
        self._fragments[fragment.journal].remove(fragment)

    def prune(self, fragment: Fragment) -> None:
        """Delete the file of a fragment, and take it out of the listing."""
        self.delete_file(fragment)
        self.forget(fragment)

    def delete_file(self, fragment: Fragment) -> None:
        """Delete the file of a fragment, without the brokers' knowledge."""
        store = self.root / fragment.backing_store.removeprefix("file:///")
        (store / fragment.content_path).unlink()

    def remove(self, journal: str) -> None:
        """Delete a journal; its files stay."""
        del self._specs[journal], self._fragments[journal], self._created[journal]

    # ------------------------------------------------------- the FragmentSource

    def journals(self, selector: LabelSelector) -> list[JournalSpec]:
        """Specs of the journals that match, ordered by name."""
        self.calls.append(("journals", str(selector), 0))
        return [
            spec
            for _, spec in sorted(self._specs.items())
            if selector.matches(spec.label_set_with_name())
        ]

    def created(self, selector: LabelSelector) -> dict[str, int]:
        """Create revisions of the journals that match, by name."""
        return {
            name: self._created[name]
            for name in sorted(self._specs)
            if selector.matches(self._specs[name].label_set_with_name())
        }

    def fragments(self, journal: str, offset: int, limit: int) -> list[Fragment]:
        """Fragments that begin at `offset` or later, in offset order, at most `limit`."""
        self.calls.append(("fragments", journal, offset))
        if journal not in self._specs:
            raise JournalNotFound(f"there is no journal {journal}")
        return [f for f in self._fragments[journal] if f.begin >= offset][:limit]

    def content(self, fragment: Fragment) -> Iterator[bytes]:
        """The fragment's content."""
        yield self._contents[(fragment.journal, fragment.begin, fragment.end)]


class _MemoryThrift:
    """The part of the Thrift API that `MetastoreSession` uses, in memory."""

    def __init__(self) -> None:
        self.added = 0
        self.altered = 0
        self._locks: dict[int, Any] = {}
        self._locks_made = 0
        self._clock_ms = 0
        self._databases: dict[str, Any] = {}
        self._tables: dict[tuple[str, str], Any] = {}
        self._partitions: dict[tuple[str, str], dict[str, Any]] = {}

    def get_all_databases(self) -> list[str]:
        return list(self._databases)

    def get_database(self, name: str) -> Any:
        if name not in self._databases:
            raise ttypes.NoSuchObjectException(f"database {name}")
        return self._databases[name]

    def create_database(self, database: Any) -> None:
        self._databases[database.name] = database

    def drop_database(self, name: str, _delete: object, _cascade: object) -> None:
        self.get_database(name)
        if any(database == name for database, _ in self._tables):
            raise ttypes.InvalidOperationException(f"database {name} is not empty")
        del self._databases[name]

    def get_all_tables(self, database: str) -> list[str]:
        return [table for owner, table in self._tables if owner == database]

    def get_table(self, database: str, name: str) -> Any:
        if (database, name) not in self._tables:
            raise ttypes.NoSuchObjectException(f"{database}.{name} table not found")
        return copy.deepcopy(self._tables[database, name])

    def create_table(self, table: Any) -> None:
        self.get_database(table.dbName)
        key = (table.dbName, table.tableName)
        if key in self._tables:
            raise ttypes.AlreadyExistsException(f"{key}")
        self._tables[key] = copy.deepcopy(table)
        self._partitions[key] = {}

    def alter_table_with_environment_context(
        self, database: str, name: str, table: Any, context: Any
    ) -> None:
        key = context.properties.get("expected_parameter_key")
        expected = context.properties.get("expected_parameter_value")
        if key and self.get_table(database, name).parameters.get(key) != expected:
            raise ttypes.MetaException(f"The table has been modified: {key} is not {expected}")
        self._tables[database, name] = copy.deepcopy(table)
        if context.properties.get("CASCADE") == "true":
            for partition in self._partitions[database, name].values():
                partition.sd.cols = copy.deepcopy(table.sd.cols)

    def drop_table(self, database: str, name: str, _delete: object) -> None:
        self.get_table(database, name)
        del self._tables[database, name]
        del self._partitions[database, name]

    def get_partition_names(self, database: str, name: str, _limit: int) -> list[str]:
        return sorted(self._partitions[database, name])

    def get_partition_names_ps(
        self, database: str, name: str, values: Sequence[str], _limit: int
    ) -> list[str]:
        return sorted(
            key
            for key, partition in self._partitions[database, name].items()
            if all(w in ("", v) for w, v in zip(values, partition.values, strict=False))
        )

    def get_partitions_by_names(self, database: str, name: str, names: Sequence[str]) -> list[Any]:
        found = self._partitions[database, name]
        return [copy.deepcopy(found[n]) for n in names if n in found]

    def add_partitions_req(self, request: Any) -> Any:
        found = self._partitions[request.dbName, request.tblName]
        new = []
        for partition in request.parts:
            name = self._name(partition)
            if name not in found:
                found[name] = copy.deepcopy(partition)
                new.append(partition)
            elif not request.ifNotExists:
                raise ttypes.AlreadyExistsException(name)
        self.added += len(new)
        return ttypes.AddPartitionsResult(partitions=new)

    def alter_partitions(self, database: str, name: str, partitions: Sequence[Any]) -> None:
        found = self._partitions[database, name]
        for partition in partitions:
            if self._name(partition) not in found:
                raise ttypes.InvalidOperationException(self._name(partition))
            found[self._name(partition)] = copy.deepcopy(partition)
        self.altered += len(partitions)

    def pass_time(self, seconds: float) -> None:
        self._clock_ms += int(seconds * 1000)

    def lock(self, request: Any) -> Any:
        (component,) = request.component
        self._locks_made += 1
        self._clock_ms += 1
        self._locks[self._locks_made] = ttypes.ShowLocksResponseElement(
            lockid=self._locks_made,
            dbname=component.dbname,
            tablename=component.tablename,
            acquiredat=self._clock_ms,
            lastheartbeat=self._clock_ms,
            agentInfo=request.agentInfo,
        )
        return self.check_lock(ttypes.CheckLockRequest(lockid=self._locks_made))

    def check_lock(self, request: Any) -> Any:
        own = self._locks.get(request.lockid)
        if own is None:
            raise ttypes.NoSuchLockException(str(request.lockid))
        own.lastheartbeat = self._clock_ms
        is_free = not any(
            (lock.dbname, lock.tablename) == (own.dbname, own.tablename)
            for lock_id, lock in self._locks.items()
            if lock_id < request.lockid
        )
        state = ttypes.LockState.ACQUIRED if is_free else ttypes.LockState.WAITING
        return ttypes.LockResponse(lockid=request.lockid, state=state)

    def show_locks(self, request: Any) -> Any:
        found = [
            lock
            for _, lock in sorted(self._locks.items())
            if (lock.dbname, lock.tablename) == (request.dbname, request.tablename)
        ]
        return ttypes.ShowLocksResponse(locks=copy.deepcopy(found))

    def unlock(self, request: Any) -> None:
        if self._locks.pop(request.lockid, None) is None:
            raise ttypes.NoSuchLockException(str(request.lockid))

    def drop_partition(
        self, database: str, name: str, values: Sequence[str], _delete: object
    ) -> None:
        found = self._partitions[database, name]
        for key, partition in list(found.items()):
            if partition.values == list(values):
                del found[key]
                return
        raise ttypes.NoSuchObjectException("/".join(values))

    def drop_partitions_req(self, request: Any) -> Any:
        found = self._partitions[request.dbName, request.tblName]
        for name in request.parts.names:
            found.pop(name, None)
        return ttypes.DropPartitionsResult()

    def _name(self, partition: Any) -> str:
        table = self._tables[partition.dbName, partition.tableName]
        return partition_name([c.name for c in table.partitionKeys], partition.values)


@final
class MemoryMetastore:
    """A metastore in memory; `connect` gives sessions over it, `thrift` is the raw API."""

    def __init__(self) -> None:
        self.thrift: Any = _MemoryThrift()

    @property
    def partitions_added(self) -> int:
        """Hive partitions that requests made new."""
        return int(self.thrift.added)

    @property
    def partitions_altered(self) -> int:
        """Hive partitions that requests replaced."""
        return int(self.thrift.altered)

    @contextmanager
    def connect(self) -> Iterator[MetastoreSession]:
        """A session."""
        yield MetastoreSession(self.thrift, "thrift://memory:9083")
