"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: what consumer groups have read.

An offset is stored with the journal that it was for. If the journal was deleted and created again, the offset is not shown any
more, and the consumer begins as its ``auto.offset.reset`` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from gazette_platform.errors import Fenced, GazetteError
from gazette_platform.kafka.coordinator.group_store import Committed
from gazette_platform.kafka.coordinator.transactions import check_producer
from gazette_platform.kafka.coordinator.txn_coordinator import known_code
from gazette_platform.kafka.failures import KafkaError, coordinator_code_of
from gazette_platform.kafka.gateway import FRESH_S
from gazette_platform.kafka.wire import Api
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.coordinator.group_store import Offsets
    from gazette_platform.kafka.coordinator.groups import Group
    from gazette_platform.kafka.coordinator.live_groups import LiveGroup, LiveGroups
    from gazette_platform.kafka.coordinator.live_transactions import StoredTransaction, TxnStore
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Topic
    from gazette_platform.kafka.wire import Call


_METADATA_BYTES_MAX: Final = 4096
_COMMIT_AGE_S: Final = 2.0
"""How old the topics may be that say which journal an offset is for: until then it may be one that was made again since."""
_NONE: Final = Committed(-1, -1, "", 0, 0)

Errors = dict[tuple[str, int], ErrorCode]
"""By topic and partition."""


async def _checked(
    gateway: Gateway, access: Access, topics: Iterable[Any], *, now_ms: int
) -> tuple[dict[str, Offsets], Errors]:
    """Offsets of a request that may be stored, by topic, and the errors of all of its partitions.

    Args:
        topics: of an OffsetCommit or TxnOffsetCommit.

    Raises: TransportError: the topics cannot be listed.
    """
    accepted: dict[str, Offsets] = {}
    errors: Errors = {}
    await gateway.topics.current(age_s=_COMMIT_AGE_S)
    for topic in topics:
        for one in topic.partitions:
            number, metadata = one.partition_index, one.committed_metadata or ""
            error = ErrorCode.none
            if len(metadata.encode()) > _METADATA_BYTES_MAX:
                error = ErrorCode.offset_metadata_too_large
            else:
                try:
                    partition = await gateway.partition(access, Capability.READ, topic.name, number)
                    epoch = getattr(one, "committed_leader_epoch", -1)
                    created = partition.listing.created
                    committed = Committed(one.committed_offset, epoch, metadata, created, now_ms)
                    accepted.setdefault(topic.name, {})[number] = committed
                except KafkaError as err:
                    error = err.code
            errors[topic.name, number] = error
    return accepted, errors


def _answers(call: Call, name: str, topics: Iterable[Any], errors: Errors) -> tuple[Any, ...]:
    """The part of an answer that names the error of each partition of a request.

    Args:
        name: of its entities, such as ``OffsetCommit``.
    """
    return tuple(
        call.new(
            f"{name}ResponseTopic",
            name=topic.name,
            partitions=tuple(
                call.new(
                    f"{name}ResponsePartition",
                    partition_index=one.partition_index,
                    error_code=errors[topic.name, one.partition_index],
                )
                for one in topic.partitions
            ),
        )
        for topic in topics
    )


@final
class GroupOffsets:
    """Answers the calls about committed offsets.

    Args:
        transactions: that commit some of them.
    """

    def __init__(self, gateway: Gateway, groups: LiveGroups, transactions: TxnStore) -> None:
        self._gateway = gateway
        self._groups = groups
        self._transactions = transactions

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(8, "offset_commit", 2, 9, self._commit)
        yield Api(9, "offset_fetch", 1, 9, self._fetch)
        yield Api(28, "txn_offset_commit", 0, 4, self._commit_for_transaction)
        yield Api(47, "offset_delete", 0, 0, self._delete)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    # ------------------------------------------------------------ commits

    async def _commit(self, call: Call) -> Any:
        request = call.request
        errors: Errors = {}
        refused = ErrorCode.none
        try:
            call.peer.access.check_group()
            generation = call.get("generation_id_or_member_epoch", call.get("generation_id", -1))
            if generation < 0:
                live = await self._groups.get(request.group_id, call.peer.access.principal)
            else:
                live = self._groups.of_member(request.group_id)
            accepted, errors = await _checked(
                self._gateway, call.peer.access, request.topics, now_ms=self._groups.now_ms
            )
            # From here to the write nothing waits: the generation could end meanwhile.
            live.check()
            instance = call.get("group_instance_id")
            refused = live.group.commit_error(
                self._groups.now, request.member_id, instance, generation
            )
            if refused is ErrorCode.none:
                self._groups.bounds.admit_offsets(live.claim, accepted)
                await self._store(live, accepted)
        except GazetteError as err:
            refused = coordinator_code_of(err)
        if refused is not ErrorCode.none:
            errors = {
                (topic.name, one.partition_index): refused
                for topic in request.topics
                for one in topic.partitions
            }
        topics = _answers(call, "OffsetCommit", request.topics, errors)
        return call.new("OffsetCommitResponse", topics=topics)

    async def _store(self, live: LiveGroup, changes: dict[str, Any]) -> None:
        if not changes:
            return
        try:
            await self._groups.store.commit(live.claim, changes)
        except Fenced as err:
            self._groups.end(live, ErrorCode.not_coordinator)
            raise KafkaError(ErrorCode.not_coordinator) from err

    async def _commit_for_transaction(self, call: Call) -> Any:
        request = call.request
        try:
            errors = await self._keep(call)
        except GazetteError as err:
            error = known_code(call, coordinator_code_of(err), since=2)
            errors = {
                (topic.name, one.partition_index): error
                for topic in request.topics
                for one in topic.partitions
            }
        topics = _answers(call, "TxnOffsetCommit", request.topics, errors)
        return call.new("TxnOffsetCommitResponse", topics=topics)

    async def _keep(self, call: Call) -> Errors:
        """Keep offsets until the transaction ends. This node coordinates the group, not the transaction."""
        request, store = call.request, self._transactions
        call.peer.access.check_group()
        call.peer.access.check_any(
            Capability.APPEND, ErrorCode.transactional_id_authorization_failed
        )
        self._groups.check(request.group_id)
        generation, member_id = call.get("generation_id", -1), call.get("member_id", "")
        is_member = generation >= 0 or member_id
        if is_member:
            live = self._groups.of_member(request.group_id)
        else:
            live = await self._groups.get(request.group_id, call.peer.access.principal)
        await self._groups.keep(live)  # a group is remembered by its record
        if is_member:
            instance = call.get("group_instance_id")
            error = live.group.commit_error(self._groups.now, member_id, instance, generation)
            if error is not ErrorCode.none:
                raise KafkaError(error)
        group_revision = live.claim.revision
        stored = await store.load(request.transactional_id)
        if stored is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        _check_open(stored, (request.producer_id, request.producer_epoch), request.group_id)
        accepted, errors = await _checked(
            self._gateway, call.peer.access, request.topics, now_ms=self._groups.now_ms
        )
        if accepted:
            self._groups.bounds.admit_offsets(live.claim, accepted)
            try:
                await store.add_pending(
                    request.group_id,
                    request.transactional_id,
                    stored,
                    accepted,
                    group_revision=group_revision,
                )
            except Fenced as err:
                # The client asks again, and learns what has changed.
                raise KafkaError(ErrorCode.coordinator_load_in_progress, str(err)) from err
        return errors

    # ------------------------------------------------------------ fetches

    async def _fetch(self, call: Call) -> Any:
        request = call.request
        is_stable = call.get("require_stable", False)
        if call.version >= 8:
            groups = tuple(
                [await self._fetched_group(call, one, is_stable) for one in request.groups]
            )
            return call.new("OffsetFetchResponse", groups=groups)
        error, found = await self._found(call, request.group_id, request.topics, is_stable)
        return call.new(
            "OffsetFetchResponse",
            topics=_topics(call, found, "OffsetFetchResponseTopic", "OffsetFetchResponsePartition"),
            error_code=error,
        )

    async def _fetched_group(self, call: Call, group: Any, is_stable: bool) -> Any:  # noqa: FBT001  of the request
        error, found = await self._found(call, group.group_id, group.topics, is_stable)
        return call.new(
            "OffsetFetchResponseGroup",
            group_id=group.group_id,
            error_code=error,
            topics=_topics(
                call, found, "OffsetFetchResponseTopics", "OffsetFetchResponsePartitions"
            ),
        )

    async def _found(
        self,
        call: Call,
        group_id: str,
        topics: Any,
        is_stable: bool,  # noqa: FBT001  of the request
    ) -> tuple[ErrorCode, dict[str, dict[int, tuple[ErrorCode, Committed]]]]:
        """Offsets by topic and partition; of all that have one if `topics` is None."""
        store = self._groups.store
        try:
            call.peer.access.check_group()
            self._groups.check(group_id)
            # Before the offsets: a transaction that ends in between shows its offsets.
            pending = await store.pending(group_id) if is_stable else set()
            stored = await store.offsets(group_id)
            if topics is None:
                wanted = {name: list(offsets) for name, offsets in stored.items()}
            else:
                wanted = {one.name: list(one.partition_indexes) for one in topics}
            known = await self._topics_for(wanted, stored)
        except GazetteError as err:
            error = coordinator_code_of(err)
            named = {one.name: one.partition_indexes for one in topics or ()}
            return error, {
                name: dict.fromkeys(numbers, (error, _NONE)) for name, numbers in named.items()
            }
        found: dict[str, dict[int, tuple[ErrorCode, Committed]]] = {}
        access = call.peer.access
        for name, numbers in wanted.items():
            topic = known.get(name)
            answers = found.setdefault(name, {})
            is_new_hidden = self._is_hidden(access, name, topic)
            for number in numbers:
                one = stored.get(name, {}).get(number, _NONE)
                partition = topic.partitions.get(number) if topic is not None else None
                if partition is None:
                    is_hidden = is_new_hidden
                else:
                    is_hidden = not access.may(Capability.READ, partition.listing.spec)
                if is_hidden:
                    answers[number] = (ErrorCode.topic_authorization_failed, _NONE)
                    continue
                if partition is None or partition.listing.created != one.created:
                    one = _NONE
                unstable = (name, number) in pending
                error = ErrorCode.unstable_offset_commit if unstable else ErrorCode.none
                answers[number] = (error, _NONE if unstable else one)
        if topics is None:
            found = {
                name: {
                    n: (error, one)
                    for n, (error, one) in answers.items()
                    if one != _NONE or error is ErrorCode.unstable_offset_commit
                }
                for name, answers in found.items()
            }
            found = {name: answers for name, answers in found.items() if answers}
        return ErrorCode.none, found

    async def _topics_for(
        self, wanted: dict[str, list[int]], stored: dict[str, Offsets]
    ) -> Mapping[str, Topic]:
        """Topics that are new enough to say that offsets are those of journals that are gone."""
        known = (await self._gateway.topics.current()).topics
        for name, numbers in wanted.items():
            for number in numbers:
                one, topic = stored.get(name, {}).get(number), known.get(name)
                found = None if topic is None else topic.partitions.get(number)
                if one and (found is None or found.listing.created != one.created):
                    return (await self._gateway.topics.current(age_s=FRESH_S)).topics
        return known

    def _is_hidden(self, access: Access, name: str, topic: Topic | None) -> bool:
        """Whether the client may not know if a topic, or a partition that it does not have, exists."""
        if topic is not None and any(
            access.may(Capability.READ, one.listing.spec) for one in topic.partitions.values()
        ):
            return False
        try:
            access.check_new(Capability.READ, name, self._gateway.config.prefix)
        except KafkaError:
            return True
        return False

    # ------------------------------------------------------------ deletes

    async def _delete(self, call: Call) -> Any:
        request = call.request
        errors: Errors = {}
        try:
            call.peer.access.check_group()
            self._groups.check(request.group_id)
            if await self._groups.store.record(request.group_id) is None:
                raise KafkaError(ErrorCode.group_id_not_found)
            live = await self._groups.get(request.group_id, call.peer.access.principal)
            live.check()
            busy = _subscribed(live.group)
            changes: dict[str, dict[int, None]] = {}
            for topic in request.topics:
                for one in topic.partitions:
                    is_busy = busy is None or topic.name in busy
                    error = ErrorCode.group_subscribed_to_topic if is_busy else ErrorCode.none
                    try:
                        await self._gateway.partition(
                            call.peer.access, Capability.READ, topic.name, one.partition_index
                        )
                    except KafkaError as err:
                        error = err.code
                    errors[topic.name, one.partition_index] = error
                    if error is ErrorCode.none:
                        changes.setdefault(topic.name, {})[one.partition_index] = None
            await self._store(live, changes)
        except GazetteError as err:
            return call.new("OffsetDeleteResponse", error_code=coordinator_code_of(err), topics=())
        topics = _answers(call, "OffsetDelete", request.topics, errors)
        return call.new("OffsetDeleteResponse", error_code=ErrorCode.none, topics=topics)


def _check_open(stored: StoredTransaction, claimed: tuple[int, int], group_id: str) -> None:
    transaction = stored.transaction
    check_producer(transaction, claimed)
    if transaction.ends_at_ms is None or group_id not in transaction.groups:
        raise KafkaError(ErrorCode.invalid_txn_state)


def _topics(
    call: Call,
    found: dict[str, dict[int, tuple[ErrorCode, Committed]]],
    topic_kind: str,
    partition_kind: str,
) -> tuple[Any, ...]:
    return tuple(
        call.new(
            topic_kind,
            name=name,
            partitions=tuple(
                call.new(
                    partition_kind,
                    partition_index=number,
                    committed_offset=one.offset,
                    committed_leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                    error_code=error,
                )
                for number, (error, one) in answers.items()
            ),
        )
        for name, answers in found.items()
    )


def _subscribed(group: Group) -> set[str] | None:
    """Topics that members of a group read; None: all, as far as can be known."""
    topics: set[str] = set()
    read = entity_reader(ConsumerProtocolSubscription)
    for member in group.members.values():
        if group.protocol_type != "consumer":
            return None
        try:
            # The fields of version 0 come first in all that follow.
            data, _ = read(member.metadata(group.protocol), 2)
        except Exception:  # noqa: BLE001  bytes of a client, which need not be what they claim
            return None
        topics.update(data.topics)
    return topics
