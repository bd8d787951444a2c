"""Which of Kafka's error codes stands for which error of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from gazette_platform import errors
from gazette_platform.errors import DataError, GazetteError
from gazette_platform.protocol.auth import Forbidden, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class KafkaError(GazetteError):
    """An answer of one of Kafka's codes.

    Args:
        code: of Kafka.
        text: for clients that show it.
    """

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text or code.name)
        self.code = code


_NAMED_MAX: Final = 50


class BadRecord(NamedTuple):
    """A record that the form of the topic cannot hold."""

    number: int
    why: str


class Refused(DataError):
    """A batch with such records; the first are named."""

    def __init__(self, records: Sequence[BadRecord]) -> None:
        first = records[0]
        more = f" (and {len(records) - 1} more)" if len(records) > 1 else ""
        super().__init__(f"record {first.number}: {first.why}{more}")
        self.records = records[:_NAMED_MAX]


# The first that fits counts.
_CODES: Final[Mapping[type[BaseException], ErrorCode]] = {
    Refused: ErrorCode.invalid_record,
    errors.JournalNotFound: ErrorCode.unknown_topic_or_partition,
    errors.NotAllowed: ErrorCode.topic_authorization_failed,
    errors.InsufficientJournalBrokers: ErrorCode.not_enough_replicas,
    errors.NoJournalPrimaryBroker: ErrorCode.leader_not_available,
    errors.FragmentStoreUnhealthy: ErrorCode.kafka_storage_error,
    errors.IndexHasGreaterOffset: ErrorCode.kafka_storage_error,
    errors.OffsetNotYetAvailable: ErrorCode.offset_out_of_range,
    errors.OffsetJump: ErrorCode.offset_out_of_range,
    errors.JournalReplaced: ErrorCode.offset_out_of_range,
    errors.StatusError: ErrorCode.not_leader_or_follower,
    errors.OutcomeUnknown: ErrorCode.request_timed_out,
    errors.TransportError: ErrorCode.not_leader_or_follower,
    errors.EtcdError: ErrorCode.coordinator_not_available,
    errors.StoreError: ErrorCode.kafka_storage_error,
    errors.ValidationError: ErrorCode.invalid_request,
    Forbidden: ErrorCode.topic_authorization_failed,
    Unauthenticated: ErrorCode.sasl_authentication_failed,
    TimeoutError: ErrorCode.request_timed_out,
}


def code_of(error: BaseException) -> ErrorCode:
    """Kafka's code of an error; unknown_server_error for any other."""
    if isinstance(error, KafkaError):
        return error.code
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error


# Of consumers of Java, which take any other for a fault of their own, and end.
_OF_FETCH: Final = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_out_of_range,
        ErrorCode.topic_authorization_failed,
        ErrorCode.corrupt_message,
    )
)
_OF_BROKERS: Final = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
    )
)


def fetch_code_of(error: BaseException) -> ErrorCode:
    """As `code_of`, for answers to Fetch."""
    code = code_of(error)
    if code in _OF_FETCH:
        return code
    return ErrorCode.not_leader_or_follower if code.retriable else ErrorCode.unknown_server_error


def coordinator_code_of(error: BaseException) -> ErrorCode:
    """As `code_of`, for answers about groups and transactions: their clients give up if a broker's code is among them."""
    code = code_of(error)
    return ErrorCode.coordinator_not_available if code in _OF_BROKERS else code
