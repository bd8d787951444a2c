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
"""

from __future__ import annotations

from gazette_platform.protocol import ProcessId

__all__ = [
    "epoch_key",
    "epochs_prefix",
    "history_key",
    "own_member_key",
    "own_members_prefix",
    "savepoint_key",
    "savepoints_prefix",
    "storing_key",
    "storing_prefix",
    "testimonies_prefix",
    "testimony_key",
    "witness_of",
]

_ROOT = "/.gazette-platform"


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
