"""Keys in etcd that Gazette does not know, beside the key space of a cluster.

They lie outside its prefix, because brokers watch everything that begins with the prefix, and complain
about keys that are neither items, members nor assignments. ``<prefix>`` begins with ``/``:

``/.gazette-platform/refused<prefix>/<zone>#<suffix>#<create revision>/<zone>#<suffix>``
    The second broker sees that the first refuses connections; under the second one's lease.
``/.gazette-platform/members<prefix>/<zone>#<suffix>``
    The member is a broker of this project, and not Gazette's; under its lease, as its member key is. The
    value has the names of the homes of spools that it holds, one a line.
``/.gazette-platform/storing<prefix>/<zone>#<suffix>#<lease>``
    The broker is leaving, or has failed and is not a member any more, and still stores content of the
    journals that the value names; under a lease of its own, which ends when it has stored them.
``/.gazette-platform/savepoints<prefix>/<name>``
    A savepoint: offsets of journals under a name; under no lease.
``/.gazette-platform/epochs<prefix>#<journal>``
    Who holds all that was acknowledged of the journal, see `epochs`; under no lease. No name of a journal
    has a ``#``, so that clusters do not share a key whose prefixes begin alike.
``/.gazette-platform/history<prefix>#``
    A random id, written by the first broker of the cluster; under no lease. If etcd loses its data, the next
    broker writes another one. So spools, and offsets that clients keep, show that they are older than etcd.
``/.gazette-platform/restoring<prefix>#``
    The SHA-256 of the backup that `gazette restore` brings back, and its prefixes. No broker joins until it is done.
``/.gazette-platform/restored<prefix>#`` and ``/.gazette-platform/restored<prefix>#<journal>``
    How clients know a restored cluster, and each journal of it; see `ClusterIdentity`.

Below the keys: how the epoch records of journals are read and written, see `epochs`; and how a restored cluster is
identified.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, final

from gazette_platform.broker.epochs import EpochRecord
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.keyspace import members_prefix
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import ProcessId

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_platform.etcd import EtcdClient, RangeResult


_ROOT = "/.gazette-platform"

PLATFORM_KEYS = f"{_ROOT}/"
"""What all these keys begin with."""


def testimonies_prefix(prefix: str, suspect: ProcessId, create_revision: int) -> str:
    """Prefix of all testimonies against one instance of a broker."""
    return f"{_ROOT}/refused{prefix}/{suspect.name}#{create_revision}/"


def testimony_key(prefix: str, suspect: ProcessId, create_revision: int, witness: ProcessId) -> str:
    """Key with which `witness` says that this instance of `suspect` refuses connections."""
    base = testimonies_prefix(prefix, suspect, create_revision)
    return f"{base}{witness.name}"


def witness_of(key: str) -> ProcessId:
    """The broker that wrote a testimony.

    >>> witness_of("/.gazette-platform/refused/p/a#left#7/b#right")
    ProcessId(zone='b', suffix='right')
    """
    zone, _, suffix = key.rpartition("/")[2].partition("#")
    return ProcessId(zone, suffix)


def own_members_prefix(prefix: str) -> str:
    """Prefix of the keys of all members that are brokers of this project."""
    return f"{_ROOT}/members{prefix}/"


def own_member_key(prefix: str, member: ProcessId) -> str:
    """Key with which a member says that it is a broker of this project."""
    return f"{own_members_prefix(prefix)}{member.name}"


def storing_prefix(prefix: str) -> str:
    """Prefix of the keys of all brokers that are leaving and still store what they hold."""
    return f"{_ROOT}/storing{prefix}/"


def storing_key(prefix: str, broker: ProcessId, lease: int) -> str:
    """Key with which a leaving broker says, under this lease, that it still stores what it holds."""
    return f"{storing_prefix(prefix)}{broker.name}#{lease:x}"


def savepoints_prefix(prefix: str) -> str:
    """Prefix of all savepoints of a cluster."""
    return f"{_ROOT}/savepoints{prefix}/"


def savepoint_key(prefix: str, name: str) -> str:
    """The key of a savepoint."""
    return f"{savepoints_prefix(prefix)}{name}"


def epochs_prefix(prefix: str) -> str:
    """Prefix of all epoch records of a cluster."""
    return f"{_ROOT}/epochs{prefix}#"


def epoch_key(prefix: str, journal: str) -> str:
    """Key of a journal's epoch record."""
    return f"{epochs_prefix(prefix)}{journal}"


def history_key(prefix: str) -> str:
    """Key of the id of etcd's data."""
    return f"{_ROOT}/history{prefix}#"


def restoring_key(prefix: str) -> str:
    """Key of a restore that is under way, or was interrupted."""
    return f"{_ROOT}/restoring{prefix}#"


def restored_key(prefix: str) -> str:
    """Key of how a restored cluster is known, and prefix of the keys of its journals."""
    return f"{_ROOT}/restored{prefix}#"


def identity_key(prefix: str, journal: str) -> str:
    """Key of how a restored journal is known; created by the revision that created its spec."""
    return f"{restored_key(prefix)}{journal}"


def cluster_of_history(key: str) -> str:
    """The prefix of the cluster whose history a key names; empty: it is another key.

    >>> cluster_of_history("/.gazette-platform/history/gazette/cluster#")
    '/gazette/cluster'
    """
    head = f"{_ROOT}/history"
    return key[len(head) : -1] if key.startswith(f"{head}/") and key.endswith("#") else ""


# Records that are read at a time: some hundred kilobytes together, unless registers are long.
_PAGE_KEYS: Final = 200


async def read_record(
    etcd: EtcdClient, prefix: str, journal: str
) -> tuple[EpochRecord | None, int]:
    """The epoch record of a journal, and the revision at which it was written; 0: there is none.

    Raises: EtcdError; ValidationError: the record cannot be understood.
    Cancellation: safe.
    """
    key = epoch_key(prefix, journal)
    found = await etcd.get(key)
    if found is None:
        return None, 0
    try:
        return EpochRecord.decode(found.value), found.mod_revision
    except ValueError as err:
        raise ValidationError(
            f"{journal}: key {key} of etcd is not understood: {err} (was it written by a newer version?)"
        ) from err


async def write_record(
    etcd: EtcdClient, prefix: str, journal: str, record: EpochRecord, mod_revision: int
) -> bool:
    """Write a record, unless the one of that revision was replaced. Returns: whether it was written."""
    key = epoch_key(prefix, journal)
    result = await etcd.txn([Compare.mod(key, mod_revision)], [Put(key, record.encode())])
    return result.succeeded


async def delete_record(
    etcd: EtcdClient, prefix: str, journal: str, create_revision: int, *, as_of: int = 0
) -> None:
    """Delete the record of a journal that was created at this revision.

    Args:
        etcd: where it is.
        prefix: of the brokers' keys.
        journal: its name.
        create_revision: of its spec.
        as_of: a record that was written after this revision stays; 0: none does.

    Raises: as `read_record`.
    """
    record, mod_revision = await read_record(etcd, prefix, journal)
    if as_of and mod_revision > as_of:
        return
    if record is not None and record.create_revision == create_revision:
        key = epoch_key(prefix, journal)
        await etcd.txn([Compare.mod(key, mod_revision)], [Delete(key)])


async def read_own_members(etcd: EtcdClient, prefix: str) -> RangeResult:
    """Read which members are brokers of this project. Raises: EtcdError. Cancellation: safe."""
    return await etcd.range(own_members_prefix(prefix))


async def foreign_members(etcd: EtcdClient, prefix: str, ours: RangeResult) -> frozenset[int]:
    """Leases of brokers of Gazette that were members when `ours` was read. Raises: EtcdError. Cancellation: safe."""
    own_prefix, their_prefix = own_members_prefix(prefix), members_prefix(prefix)
    present = await etcd.range(their_prefix, revision=ours.header.revision)
    leases = {kv.key.removeprefix(own_prefix): kv.lease for kv in ours.kvs}
    return frozenset(
        kv.lease for kv in present.kvs if leases.get(kv.key.removeprefix(their_prefix)) != kv.lease
    )


async def journal_holders(
    etcd: EtcdClient, prefix: str, journals: Collection[str]
) -> dict[str, set[str]]:
    """The holders of each of some journals, without the journals that wait for one of their holders.

    Args:
        etcd: where the records are.
        prefix: of the brokers' keys.
        journals: those it is asked about; may change meanwhile.

    Returns: ids of tenures by journal.
    Raises: EtcdError.
    Cancellation: safe.
    """
    keys = epochs_prefix(prefix)
    holders: dict[str, set[str]] = {}
    turns, after, left = Turns(), "", 1
    while left:
        page = await etcd.page(keys, after=after, page_keys=_PAGE_KEYS)
        for kv in page.kvs:
            await turns.take()
            journal = kv.key.removeprefix(keys)
            if journal not in journals:
                continue
            with contextlib.suppress(ValueError):  # reported by whoever reads this record alone
                record = EpochRecord.decode(kv.value)
                if not record.is_wanted:
                    holders[journal] = {one.tenure for one in record.holders}
        left = page.count - len(page.kvs)
        after = page.kvs[-1].key if page.kvs else ""
    return holders


# Clients keep beside an offset which journal it belongs to (`protocol.identity`): the revision of etcd that created
# the journal, and the history of that etcd. A restore creates all keys again, in another etcd. The journals are the
# same, though, and so is what is stored of them. So `gazette restore` notes beside each journal how it was identified,
# and brokers say that.
#
# Journals that are created later must never look like one of the former etcd, which went on after the backup. So their
# revisions count from a base far after the last one of the backup.
#
# Spools are not deceived: for them etcd has lost what came after the backup, so their history is the new one.
_VERSION: Final = 1
_IDENTITIES_PAGE_KEYS: Final = 1000


@final
@dataclass(slots=True)
class ClusterIdentity:
    """How a cluster, and each of its journals, is identified."""

    history: str = ""
    """As clients hear it: of the etcd that created the restored journals; empty: not known."""
    cluster: str = ""
    """Id of that etcd, which spools name as theirs."""
    base: int = 0
    """What the revisions of all other journals count from."""
    backup: str = ""
    """SHA-256 of the backup, and which prefixes of it were restored; empty: the cluster was never restored."""
    journals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By restored journal: its create revision in this etcd, and the one that clients keep for it."""
    revision: int = 0
    """At which etcd's key of the cluster was last changed; 0: it does not exist. Who reads this and joins later compares it:
    a restore in between gives the cluster another identity."""

    def revision_of(self, journal: str, create_revision: int) -> int:
        """The create revision of a journal, as clients know it.

        >>> identity = ClusterIdentity(base=1000, journals={"a": (7, 70)})
        >>> identity.revision_of("a", 7), identity.revision_of("a", 8), identity.revision_of("b", 9)
        (70, 1008, 1009)
        """
        here, known = self.journals.get(journal, (0, 0))
        return known if here == create_revision and known else self.base + create_revision

    def encode(self) -> bytes:
        """The value of the key that says so of the cluster."""
        said = {
            "version": _VERSION,
            "history": self.history,
            "cluster": self.cluster,
            "base": self.base,
            "backup": self.backup,
        }
        return json.dumps(said).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read such a value. Raises: ValueError: it is something else."""
        try:
            said: dict[str, Any] = json.loads(value)
            if said["version"] != _VERSION:
                raise ValueError(f"version {said['version']} (expected {_VERSION})")
            return cls(
                str(said["history"]), str(said["cluster"]), int(said["base"]), str(said["backup"])
            )
        except (KeyError, TypeError, RecursionError) as err:
            raise ValueError(f"malformed: {err!r}") from err


async def read_identity(
    etcd: EtcdClient, prefix: str, *, revision: int = 0, is_with_journals: bool = True
) -> ClusterIdentity:
    """Read how a cluster is identified; `history` is empty if it was never restored.

    Raises: EtcdError; SetupError: what etcd has cannot be understood.
    Cancellation: safe.
    """
    keys = restored_key(prefix)
    found = await etcd.get(keys, revision=revision)
    if found is None:
        return ClusterIdentity()
    try:
        identity = ClusterIdentity.decode(found.value)
        identity.revision = found.mod_revision
        turns, after, left = Turns(), keys, 1 if is_with_journals else 0
        while left > 0:
            page = await etcd.page(
                keys, after=after, revision=revision, page_keys=_IDENTITIES_PAGE_KEYS
            )
            for kv in page.kvs:
                await turns.take()
                identity.journals[kv.key.removeprefix(keys)] = (kv.create_revision, int(kv.value))
            left = page.count - len(page.kvs)
            after = page.kvs[-1].key if page.kvs else ""
    except ValueError as err:
        raise SetupError(
            f"the keys {keys}* of etcd are not understood: {err} (were they written by a newer version?)"
        ) from err
    return identity
