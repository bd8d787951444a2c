"""The one tree of errors.

Every message says what failed, on which named thing, and what to do next. Code that maps an error
to a gRPC status or to an exit code lives at the edges (``broker.*_api``, ``cli``) and nowhere else.

    GazetteError
    ├── ValidationError       bad input: names, labels, specs, requests, configuration
    ├── StatusError           a status other than OK in a response (one class per status below)
    ├── TransportError        the peer could not be reached or the stream broke; outcome unknown
    │   ├── CallFailed        the broker ended the call with an error of gRPC
    │   │   └── CallUnanswered  it did not answer in time
    │   └── OutcomeUnknown    refused, but an earlier attempt of the same call may have been applied
    ├── EtcdError             ├── LeaseLost  └── TransactionFailed
    ├── StoreError            ├── ObjectNotFound ├── AccessDenied └── StoreUnavailable
    ├── DataError             ├── ChecksumMismatch ├── OffsetJump ├── JournalReplaced └── Desynchronized
    ├── DependencyFailed      an append was not made, because one that it was to follow has failed
    ├── SpoolsAwaited         only brokers that are away hold all that a journal acknowledged
    ├── SavepointError        ├── SavepointExists └── SavepointNotFound
    ├── Fenced                another process has taken a shard over
    ├── ApplicationFailed     an application of a consumer does what its contract forbids
    ├── WriterFenced          a writer of epochs comes late: another one has gone on in its name
    ├── LakeError             ├── PartitionConflict ├── SchemaMismatch ├── TableFenced
    │                         ├── TypedRolledBack ├── TypedProgressGone └── TypedRefused
    └── SetupError            a tool, port or server that the platform needs is missing
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDenied",
    "ApplicationFailed",
    "AssignmentGone",
    "CallFailed",
    "CallUnanswered",
    "ChecksumMismatch",
    "DataError",
    "DependencyFailed",
    "Desynchronized",
    "EtcdError",
    "EtcdTransactionFailed",
    "Fenced",
    "FragmentStoreUnhealthy",
    "GazetteError",
    "IndexHasGreaterOffset",
    "InsufficientJournalBrokers",
    "JournalNotFound",
    "JournalReplaced",
    "LakeError",
    "LeaseLost",
    "NoJournalPrimaryBroker",
    "NoShardPrimary",
    "NotAllowed",
    "NotJournalBroker",
    "NotJournalPrimaryBroker",
    "NotShardPrimary",
    "ObjectNotFound",
    "OffsetJump",
    "OffsetNotYetAvailable",
    "OutcomeUnknown",
    "PartitionConflict",
    "ProposalMismatch",
    "RegisterMismatch",
    "SavepointError",
    "SavepointExists",
    "SavepointNotFound",
    "SchemaMismatch",
    "SetupError",
    "ShardNotFound",
    "ShardStopped",
    "SpoolsAwaited",
    "StatusError",
    "StoreError",
    "StoreUnavailable",
    "Suspended",
    "TableFenced",
    "TransactionFailed",
    "TransportError",
    "TypedProgressGone",
    "TypedRefused",
    "TypedRolledBack",
    "ValidationError",
    "WriterFenced",
    "WrongAppendOffset",
    "WrongRoute",
    "status_error",
]


class GazetteError(Exception):
    """Base of every error of this package.

    ``retriable`` claims that the same call, unchanged, may well succeed if made again shortly.
    """

    retriable: ClassVar[bool] = False

    may_be_applied: bool = False
    """Of an append: whether it may be in the journal all the same, once or several times."""


class ValidationError(GazetteError, ValueError):
    """Input that breaks a rule; ``path`` names the field, outermost first, joined by ``.``."""

    def __init__(self, message: str, *, path: str = "") -> None:
        self.message = message
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)

    def within(self, context: str) -> ValidationError:
        """The same error seen from the enclosing field `context`."""
        joiner = "" if not self.path or self.path.startswith("[") else "."
        return ValidationError(self.message, path=f"{context}{joiner}{self.path}")


class StatusError(GazetteError):
    """A response carried a status other than OK. The request was not applied.

    Attributes:
        status: the wire's enum name.
        journal: what it was about, if known.
    """

    status: ClassVar[str] = ""
    advice: ClassVar[str] = ""

    def __init__(self, detail: str = "", *, journal: str = "") -> None:
        self.journal = journal
        self.detail = detail
        text = ": ".join(part for part in (journal, self.status, detail) if part)
        if self.advice:
            text = f"{text} ({self.advice})"
        super().__init__(text)


class JournalNotFound(StatusError):
    """No such journal, or the caller's claims hide it."""

    status = "JOURNAL_NOT_FOUND"
    advice = (
        "check the name with `gazctl journals list`, or create it with `gazctl journals create`"
    )


class NoJournalPrimaryBroker(StatusError):
    """No broker is primary of the journal yet."""

    retriable = True
    status = "NO_JOURNAL_PRIMARY_BROKER"
    advice = "the journal is being assigned; try again shortly"


class NotJournalPrimaryBroker(StatusError):
    """The broker asked is not the primary, and the call forbids a proxy."""

    retriable = True
    status = "NOT_JOURNAL_PRIMARY_BROKER"


class InsufficientJournalBrokers(StatusError):
    """Fewer brokers are assigned than the replication of the journal asks for."""

    retriable = True
    status = "INSUFFICIENT_JOURNAL_BROKERS"
    advice = "add brokers, or lower the replication of the journal"


class NotJournalBroker(StatusError):
    """The broker asked does not serve the journal, and the call forbids a proxy."""

    retriable = True
    status = "NOT_JOURNAL_BROKER"


class OffsetNotYetAvailable(StatusError):
    """A non-blocking read reached the write head."""

    status = "OFFSET_NOT_YET_AVAILABLE"


class WrongRoute(StatusError):
    """A replica knows a route other than the primary's."""

    retriable = True
    status = "WRONG_ROUTE"


class ProposalMismatch(StatusError):
    """A replica's fragment differs from the primary's proposal."""

    status = "PROPOSAL_MISMATCH"


class EtcdTransactionFailed(StatusError):
    """Another caller changed the spec since its revision was read."""

    status = "ETCD_TRANSACTION_FAILED"
    advice = "the revision is stale; list again, and apply on top of what you find"


class NotAllowed(StatusError):
    """The journal's flags, or its suspension, forbid the operation."""

    status = "NOT_ALLOWED"
    advice = "check the `flags` of the journal"


class WrongAppendOffset(StatusError):
    """The append named an offset other than the write head."""

    status = "WRONG_APPEND_OFFSET"
    advice = "another writer appended, or it never ended there: read its write head again"


class IndexHasGreaterOffset(StatusError):
    """The fragment store holds content beyond the broker's write head."""

    status = "INDEX_HAS_GREATER_OFFSET"
    advice = "after all former brokers have persisted, run `gazctl journals reset-head`"


class RegisterMismatch(StatusError):
    """The registers of the journal do not match the selector of the append."""

    status = "REGISTER_MISMATCH"


class Suspended(StatusError):
    """The journal is suspended, and the request did not ask to resume it."""

    status = "SUSPENDED"


class FragmentStoreUnhealthy(StatusError):
    """The first store of the journal fails its health checks, or a store of it cannot be listed."""

    status = "FRAGMENT_STORE_UNHEALTHY"
    advice = "check the store with `gazctl journals store-health`"


class ShardNotFound(StatusError):
    """No such shard, or the caller's claims hide it."""

    status = "SHARD_NOT_FOUND"
    advice = "check the name with `gazctl shards list`, or create it with `gazctl shards apply`"


class NoShardPrimary(StatusError):
    """No process is primary of the shard yet."""

    retriable = True
    status = "NO_SHARD_PRIMARY"
    advice = "the shard is being assigned; try again shortly"


class NotShardPrimary(StatusError):
    """The process asked is not the primary, and may not ask the one that is."""

    retriable = True
    status = "NOT_SHARD_PRIMARY"


class ShardStopped(StatusError):
    """The primary of the shard has failed, or the shard was assigned to another process."""

    retriable = True
    status = "SHARD_STOPPED"
    advice = "if it stays so, see `gazctl shards list` for its error, and `gazctl shards unassign --failed`"


class AssignmentGone(ShardStopped):
    """The shard is not assigned to this process any more, which will have its replica stop."""


_STATUS_ERRORS: dict[str, type[StatusError]] = {
    cls.status: cls
    for cls in (
        JournalNotFound,
        NoJournalPrimaryBroker,
        NotJournalPrimaryBroker,
        InsufficientJournalBrokers,
        NotJournalBroker,
        OffsetNotYetAvailable,
        WrongRoute,
        ProposalMismatch,
        EtcdTransactionFailed,
        NotAllowed,
        WrongAppendOffset,
        IndexHasGreaterOffset,
        RegisterMismatch,
        Suspended,
        FragmentStoreUnhealthy,
        ShardNotFound,
        NoShardPrimary,
        NotShardPrimary,
        ShardStopped,
    )
}


def status_error(status: str, detail: str = "", *, journal: str = "") -> StatusError:
    """The error of a wire status.

    Args:
        status: enum name, anything but ``OK``.

    Returns: an instance of the class of that status; unknown names give a plain `StatusError`.
    """
    cls = _STATUS_ERRORS.get(status)
    if cls is None:
        return StatusError(f"unknown status {status} {detail}".strip(), journal=journal)
    return cls(detail, journal=journal)


class TransportError(GazetteError):
    """The peer could not be reached, or the stream broke; whether it was applied is unknown.

    Of an append, `may_be_applied` is False where its end was never sent: then nothing was.
    """

    retriable = True
    may_be_applied = True


class CallFailed(TransportError):
    """The broker ended the call with a gRPC error. For an append the outcome is unknown.

    Attributes:
        code: name of the gRPC code, such as ``UNKNOWN`` or ``UNAUTHENTICATED``.
        details: what the broker itself said.
    """

    retriable = False

    def __init__(self, message: str, *, code: str, details: str = "") -> None:
        self.code = code
        self.details = details
        super().__init__(message)


class CallUnanswered(CallFailed):
    """The broker did not answer in time. For an append the outcome is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="DEADLINE_EXCEEDED")


class OutcomeUnknown(TransportError):
    """A call was refused whose earlier attempt got no answer: that one may have been applied.

    Then a refusal says nothing, because what was applied can be its very reason: the write head
    moved, or the registers changed. `__cause__` is the refusal.
    """

    retriable = False


class EtcdError(GazetteError):
    """Etcd refused or did not answer.

    Attributes:
        told: the text for callers of this process, which omits where etcd is, and its keys.
    """

    retriable = True

    def __init__(self, message: str, *, told: str = "") -> None:
        super().__init__(message)
        self.told = told or message


class LeaseLost(EtcdError):
    """The process's lease ended: everything it owned in etcd is gone, and it must stop."""

    retriable = False


class TransactionFailed(EtcdError):
    """A comparison of an etcd transaction did not hold."""

    retriable = False


class StoreError(GazetteError):
    """A fragment store failed, or that of a shard."""


class ObjectNotFound(StoreError):
    """The object is not in the store."""


class AccessDenied(StoreError):
    """The store exists and refuses us: an authorization error of `contract`'s IsAuthError."""


class StoreUnavailable(StoreError):
    """The store did not answer, or failed for a reason that may pass."""

    retriable = True


class DataError(GazetteError):
    """Bytes are not what they should be."""


class ChecksumMismatch(DataError):
    """Content does not have the digest that its name or response claims."""


class OffsetJump(DataError):
    """A read continues at a greater offset than asked: content between was pruned or lost.

    Attributes:
        from_offset: journal offset that was asked for.
        to_offset: journal offset at which reading may go on.
    """

    def __init__(self, journal: str, from_offset: int, to_offset: int) -> None:
        self.journal = journal
        self.from_offset = from_offset
        self.to_offset = to_offset
        super().__init__(
            f"{journal}: offset jump from {from_offset} to {to_offset} "
            "(content between is not available; continue reading at the latter)"
        )


class JournalReplaced(DataError):
    """An offset belongs to a journal that was deleted; another journal has its name now.

    Attributes:
        journal: its name.
        offset: the one of the former journal.
    """

    def __init__(self, journal: str, offset: int, evidence: str, advice: str) -> None:
        self.journal = journal
        self.offset = offset
        super().__init__(
            f"{journal} was deleted and made again: offset {offset} belongs to {evidence} ({advice})"
        )


class Desynchronized(DataError):
    """A framing's magic or delimiter is missing: the reader lost its place."""


class DependencyFailed(GazetteError):
    """An append was not made, because one that it was to follow has failed."""


class SpoolsAwaited(GazetteError):
    """Only brokers that are away hold all that a journal acknowledged, and no operator gave it up."""


class SavepointError(GazetteError):
    """A savepoint is not as expected."""


class SavepointExists(SavepointError):
    """One of that name exists, or another caller changed it at that moment."""


class SavepointNotFound(SavepointError):
    """There is none of that name, or the caller's claims hide it."""


class Fenced(GazetteError):
    """Another process has taken over what this one was the owner of: it has to stop.

    What it did not know to be committed may be lost; the other one goes on without it.
    """


class ApplicationFailed(GazetteError):
    """An application of a consumer does what its contract forbids."""


class WriterFenced(GazetteError):
    """A writer of epochs comes late: another process has gone on in its name. Nothing was appended."""


class LakeError(GazetteError):
    """A table, partition or query of the lake failed."""


class PartitionConflict(LakeError):
    """A Hive partition exists with another location, or two names claim one partition."""


class SchemaMismatch(LakeError):
    """A table spec does not fit the data, or a table that exists."""


class TableFenced(LakeError):
    """Another run has published to a table, or changed its shape, since this one began; nothing was changed."""

    retriable = True


class TypedRolledBack(LakeError):
    """A typed table was rolled back to before its progress: a person has to say which of the two counts."""


class TypedProgressGone(LakeError):
    """A typed table has rows, and no record of its progress: its tag was dropped."""


class TypedRefused(LakeError):
    """A typed table is such that nothing can be published to it, which asking again does not change."""


class SetupError(GazetteError):
    """Something that the platform needs to run is missing or occupied."""
