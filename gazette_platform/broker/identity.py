"""Which journals the brokers of a restored cluster serve: those that the backup was made of.

Clients keep beside an offset which journal it belongs to (`protocol.identity`): the revision of etcd that created
the journal, and the history of that etcd. A restore creates all keys again, in another etcd. The journals are the
same, though, and so is what is stored of them. So `gazette restore` notes beside each journal how it was identified,
and brokers say that.

Journals that are created later must never look like one of the former etcd, which went on after the backup. So their
revisions count from a base far after the last one of the backup.

Spools are not deceived: for them etcd has lost what came after the backup, so their history is the new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, final

from gazette_platform.broker.etcd_records import restored_key
from gazette_platform.errors import SetupError
from gazette_platform.ops.tasks import Turns

if TYPE_CHECKING:
    from gazette_platform.etcd import EtcdClient

_VERSION: Final = 1
_PAGE_KEYS: Final = 1000


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
            page = await etcd.page(keys, after=after, revision=revision, page_keys=_PAGE_KEYS)
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
