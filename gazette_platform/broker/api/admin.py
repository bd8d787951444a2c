"""Serves `gazette_platform.Admin`: flushes, savepoints, and heads that an operator resets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.broker.api.routing import decode, endpoint_of, find, rules
from gazette_platform.broker.append.batch import Outcome
from gazette_platform.broker.append.events import AppendRequest
from gazette_platform.broker.etcd_records import savepoint_key, savepoints_prefix
from gazette_platform.broker.journal.claims import HoldersAway
from gazette_platform.broker.journal.gaps import ask_others, call_flush, spool_ends
from gazette_platform.broker.journal.pulses import barrier
from gazette_platform.broker.peers import PeerCall, PeerFailed, with_header
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import (
    AppendSuspend,
    Header,
    LabelSet,
    Route,
    Status,
    created_by,
    created_list,
    created_map,
    history_bits,
    learned,
    validate_journal_name,
    validate_journal_request,
    validate_token,
)
from gazette_platform.protocol.auth import ALL_CLAIMS, Capability, Forbidden
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, admin_pb2 as pb
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import Holder
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.etcd import KeyValue
    from gazette_platform.protocol.auth import Claims

_NAME_LENGTH_MAX = 256
# Etcd takes requests of up to 1.5 MiB. A savepoint near that is too large to be a few offsets' name.
_SAVEPOINT_BYTES_MAX = 1 << 20
# Savepoints that are read at a time: all of them together may not fit into memory.
_PAGE_KEYS = 8


@final
class AdminApi:
    """Admin RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._resolver = resolver
        self._prefix = context.config.etcd_prefix
        # Held by whoever works on a savepoint, or on a page of them. Each may be large, so it costs
        # memory and time on the event loop, and a client may send a thousand such calls at once.
        self._savepoints = asyncio.Lock()

    # --------------------------------------------------------------------------------- flush
    async def flush(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one Flush: return once the journal's store holds all that was appended before.

        While the store is down, or refuses, this waits for as long as the caller does.

        Returns: the status, and the FlushResponse that says so.
        Raises: RpcFailed: the request is malformed; our replica closed meanwhile, so that the caller
            has to ask again; or the primary that we forwarded it to failed the call. Forbidden: the
            claims do not allow to give up content.
        Cancellation: the open fragment is closed nevertheless, now or later.
        """
        request = decode(admin_pb.FlushRequest, raw, validate_journal_request)
        if request.gives_up:
            claims.require(Capability.APPLY)  # as for the reset of a head, which includes this
        is_forwarded = request.HasField("header")
        found = await find(
            self._resolver,
            request,
            claims,
            may_proxy=not is_forwarded,
            require_primary=True,
            min_revision=request.min_etcd_revision,
        )
        resolution = found.resolution
        if found.is_remote:
            return await self._forward(request, resolution)
        status, end, spec = found.status, 0, resolution.spec
        if status is Status.SUSPENDED and spec is not None and spec.suspend is not None:
            # Fully suspended: the journal was empty, or the store has all of it. No broker serves it.
            status, end = Status.OK, spec.suspend.offset
        if found.replica is not None:
            status, end = await self._flush(found.replica)
        elif is_forwarded and status is Status.NOT_JOURNAL_PRIMARY_BROKER:
            # The primary asks us to store what we hold of the time before it became the primary.
            end = await self._flush_former(resolution.journal, request)
        response = admin_pb.FlushResponse(status=status.value, end=end)  # type: ignore[arg-type]
        resolution.header.into_pb(response.header)
        return status, response.SerializeToString()

    async def _flush_former(self, journal: str, request: admin_pb.FlushRequest) -> int:
        """Store what we hold of a journal that another broker leads. Returns: the answer to `asks_end`."""
        leftovers = self._context.leftovers
        await self._resolver.closed(journal)
        if request.asks_end:
            return leftovers.end_of(journal)
        replica = self._resolver.replicas.get(journal)
        is_open = False
        if replica is not None:
            if request.gives_up:  # the claim of who asks comes after that
                replica.spool.release()
            # What is released from here on may still be closing when all else is stored.
            is_open = _is_open(replica)
            await replica.spool.completed()
        await leftovers.settle(journal, is_given_up=request.gives_up)
        await self._context.persister.flush(journal)
        self._check_all_is_stored(journal, is_open=is_open or _is_open(replica))
        return 0

    async def _flush(self, replica: Replica) -> tuple[Status, int]:
        spec = replica.spec
        if spec is not None and not spec.fragment.stores:
            return Status.NOT_ALLOWED, 0  # the journal is kept in brokers only
        outcome = await replica.close_fragment()
        if outcome.is_remote:
            raise _moved(replica.name)
        if outcome.status is Status.SUSPENDED:
            end = replica.index.summary.end  # its fragment was closed when it was suspended
        elif outcome.status is Status.OK and outcome.commit is not None:
            end = outcome.commit.end
        else:
            return outcome.status, 0
        await self._resolver.closed(replica.name)  # a former replica of ours may still be closing
        await self._context.leftovers.settle(replica.name)
        await self._context.persister.flush(replica.name)
        self._check_all_is_stored(replica.name, is_open=_is_open(replica))
        await self._flush_others(replica, end)
        replica.refresh()  # what others have stored may cover the copies that we hold
        if not await replica.index.wait_persisted(end):
            raise _moved(replica.name)
        return Status.OK, end

    def _check_all_is_stored(self, journal: str, *, is_open: bool) -> None:
        """Raises: RpcFailed: UNAVAILABLE: what a former process left of the journal is not stored yet."""
        if is_open or self._context.leftovers.has_content(journal):
            raise NotNow(f"{journal}: what a former process left of its spool is not stored yet")

    async def _flush_others(self, replica: Replica, end: int) -> None:
        """Wait until no other broker holds content below `end` that is in no store.

        Raises: RpcFailed: the replica closed meanwhile. Cancellation: safe.
        """
        attempt = 0
        while not replica.index.is_stored(replica.flushed_end, end):
            is_stored = await ask_others(self._context, replica.name)
            if replica.is_closed:
                raise _moved(replica.name)
            if is_stored:
                replica.flushed_end = end
                return
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1

    async def _forward(
        self, request: admin_pb.FlushRequest, found: Resolution
    ) -> tuple[Status, bytes]:
        return await call_flush(self._context, endpoint_of(found), request, found.header)

    # ---------------------------------------------------------------------------- savepoints
    async def put_savepoint(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one PutSavepoint.

        Raises: RpcFailed: the request is malformed, or ALREADY_EXISTS. Forbidden: a journal is beyond
            the claims.
        """
        request = admin_pb.PutSavepointRequest.FromString(raw)
        savepoint = request.savepoint
        size = len(raw)
        if size > _SAVEPOINT_BYTES_MAX:  # before its names are checked, which takes long
            raise RpcFailed(
                Code.UNKNOWN,
                f"a savepoint has {len(savepoint.offsets)} offsets, too many to keep in etcd "
                f"({size} bytes of {_SAVEPOINT_BYTES_MAX}); make several",
            )
        async with self._savepoints:
            return await self._put_savepoint(request, claims)

    async def _put_savepoint(
        self, request: admin_pb.PutSavepointRequest, claims: Claims
    ) -> tuple[Status, bytes]:
        savepoint = request.savepoint
        with rules("Savepoint"):
            await _validate_savepoint(savepoint)
        await self._require_all(savepoint.offsets, claims)
        self._note_created(savepoint)
        savepoint.created_at = int(self._context.clock.now().timestamp())
        savepoint.journals = len(savepoint.offsets)
        key = savepoint_key(self._prefix, savepoint.name)
        value = savepoint.SerializeToString(deterministic=True)
        known = await self._find(savepoint.name)
        if known is not None:
            if not request.replace:
                raise RpcFailed(
                    Code.ALREADY_EXISTS,
                    f"savepoint {savepoint.name} exists already (choose another name, or replace "
                    "or delete it)",
                )
            await self._require_whole(_savepoint(known), claims)
        revision = known.mod_revision if known is not None else 0
        await self._write(savepoint.name, Compare.mod(key, revision), Put(key, value))
        response = admin_pb.PutSavepointResponse(savepoint=savepoint)
        self._header().into_pb(response.header)
        return Status.OK, response.SerializeToString()

    def _note_created(self, savepoint: admin_pb.Savepoint) -> None:
        """Say of each journal which one its offset belongs to, unless the client has said it."""
        items = self._context.space.state.items
        identity = self._context.identity
        bits = history_bits(self._context.identity.history)
        known = created_map(savepoint.offsets, savepoint.created)
        for name in savepoint.offsets:
            if name in items:
                now = created_by(identity.revision_of(name, items[name].create_revision), bits)
                known[name] = learned(now, known.get(name, 0))
        savepoint.created[:] = created_list(savepoint.offsets, known)

    async def get_savepoint(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one GetSavepoint, with the offsets of those journals that the claims cover.

        Raises: RpcFailed: the request is malformed, or NOT_FOUND.
        """
        request = admin_pb.GetSavepointRequest.FromString(raw)
        async with self._savepoints:
            found = await self._visible(_savepoint(await self._get(request.name)), claims)
            if found is None:
                raise _unknown(request.name)
            response = admin_pb.GetSavepointResponse(savepoint=found)
            self._header().into_pb(response.header)
            return Status.OK, response.SerializeToString()

    async def list_savepoints(
        self, raw: bytes, claims: Claims = ALL_CLAIMS
    ) -> tuple[Status, bytes]:
        """Serve one ListSavepoints: those with any journal that the claims cover, by name."""
        request = admin_pb.ListSavepointsRequest.FromString(raw)
        prefix = savepoints_prefix(self._prefix) + request.prefix
        response = admin_pb.ListSavepointsResponse()
        self._header().into_pb(response.header)
        last = await self._add_page(prefix, None, response, claims)
        while last is not None:
            last = await self._add_page(prefix, last, response, claims)
        return Status.OK, response.SerializeToString()

    async def _add_page(
        self,
        prefix: str,
        after: tuple[str, int] | None,
        response: admin_pb.ListSavepointsResponse,
        claims: Claims,
    ) -> tuple[str, int] | None:
        """Add one page of savepoints to a response, as far as the caller may see them.

        Args:
            after: the key after which the page begins, and the revision that the first page was
                read at; None: this is the first page.

        Returns: `after` of the next page; None: this was the last one.
        """
        key, revision = after or ("", 0)
        async with self._savepoints:
            page = await self._context.etcd.page(
                prefix, after=key, revision=revision, page_keys=_PAGE_KEYS
            )
            for kv in page.kvs:
                savepoint = await self._visible(_savepoint(kv), claims)
                if savepoint is not None:
                    # Field by field: a copied message keeps the memory of its offsets, even when
                    # they are cleared.
                    response.savepoints.add(
                        name=savepoint.name,
                        created_at=savepoint.created_at,
                        journals=savepoint.journals,
                    )
        is_last = len(page.kvs) == page.count
        return None if is_last else (page.kvs[-1].key, page.header.revision)

    async def delete_savepoint(
        self, raw: bytes, claims: Claims = ALL_CLAIMS
    ) -> tuple[Status, bytes]:
        """Serve one DeleteSavepoint.

        Raises: RpcFailed: the request is malformed, or NOT_FOUND: there is none, or the claims cover
            none of its journals. Forbidden: they cover only some of them.
        """
        request = admin_pb.DeleteSavepointRequest.FromString(raw)
        async with self._savepoints:
            known = await self._get(request.name)
            if await self._visible(_savepoint(known), claims) is None:
                raise _unknown(request.name)
            await self._require_whole(_savepoint(known), claims)
        unchanged = Compare.mod(known.key, known.mod_revision)
        await self._write(request.name, unchanged, Delete(known.key))
        response = admin_pb.DeleteSavepointResponse()
        self._header().into_pb(response.header)
        return Status.OK, response.SerializeToString()

    async def _find(self, name: str) -> KeyValue | None:
        return await self._context.etcd.get(savepoint_key(self._prefix, name))

    async def _get(self, name: str) -> KeyValue:
        with rules("Name"):
            _validate_name(name)
        found = await self._find(name)
        if found is None:
            raise _unknown(name)
        return found

    async def _write(self, name: str, unchanged: Compare, operation: Put | Delete) -> None:
        result = await self._context.etcd.txn([unchanged], [operation])
        if not result.succeeded:
            raise RpcFailed(
                Code.ALREADY_EXISTS,
                f"savepoint {name} was changed by another caller at this moment; look again",
            )

    def _header(self) -> Header:
        return Header(self._resolver.process_id, Route(), self._context.space.header)

    def _is_covered(self, journal: str, claims: Claims) -> bool:
        item = self._context.space.state.items.get(journal)
        # Once a journal is deleted, only its name is known.
        labels = LabelSet.of(name=journal) if item is None else item.spec.label_set_with_name()
        return claims.match(labels)

    async def _beyond(self, journals: Iterable[str], claims: Claims) -> list[str]:
        """Those of many journals that are beyond the claims."""
        if claims is ALL_CLAIMS:
            return []
        turns, found = Turns(), []
        for journal in journals:
            if not self._is_covered(journal, claims):
                found.append(journal)
            await turns.take()
        return found

    async def _require_all(self, journals: Iterable[str], claims: Claims) -> None:
        """Raises: Forbidden: one of them is beyond the claims."""
        for journal in await self._beyond(journals, claims):
            raise Forbidden(f"not authorized to {journal}")

    async def _require_whole(self, savepoint: admin_pb.Savepoint, claims: Claims) -> None:
        """Raises: Forbidden: it has journals beyond the claims. The error does not name them."""
        if await self._beyond(savepoint.offsets, claims):
            raise Forbidden(f"not authorized to all journals of savepoint {savepoint.name}")

    async def _visible(
        self, savepoint: admin_pb.Savepoint, claims: Claims
    ) -> admin_pb.Savepoint | None:
        """The part of a savepoint that a caller with these claims may see; None: nothing."""
        beyond = await self._beyond(savepoint.offsets, claims)
        created = created_map(savepoint.offsets, savepoint.created) if beyond else {}
        for journal in beyond:
            del savepoint.offsets[journal]
        if beyond:
            savepoint.created[:] = created_list(savepoint.offsets, created)
        if claims is ALL_CLAIMS:
            return savepoint
        savepoint.journals = len(savepoint.offsets)
        return savepoint if savepoint.offsets else None


def _savepoint(kv: KeyValue) -> admin_pb.Savepoint:
    return admin_pb.Savepoint.FromString(kv.value)


def _validate_name(name: str) -> None:
    validate_token(name, 1, _NAME_LENGTH_MAX)


async def _validate_savepoint(savepoint: admin_pb.Savepoint) -> None:
    try:
        _validate_name(savepoint.name)
    except ValidationError as err:
        raise err.within("Name") from err
    if not savepoint.offsets:
        raise ValidationError("expected the offset of one journal at least", path="Offsets")
    turns = Turns()
    for journal, offset in savepoint.offsets.items():
        await turns.take()
        validate_journal_name(journal)
        if offset < 0:
            raise ValidationError(f"invalid offset of {journal} ({offset}; expected >= 0)")


def _unknown(name: str) -> RpcFailed:
    return RpcFailed(
        Code.NOT_FOUND, f"there is no savepoint {name} (`gazctl savepoints list` shows them)"
    )


def _is_open(replica: Replica | None) -> bool:
    """Whether closed fragments wait until it is known that they are the journal's, or that others have them."""
    return replica is not None and (replica.spool.is_unconfirmed or replica.spool.is_held)


def _moved(journal: str) -> RpcFailed:
    return NotNow(f"{journal}: another broker takes it over")


_RESET_HEAD = "/gazette_platform.Admin/ResetHead"

# A broker that is about to come back, or to let go of what it has, is looked for at this pace.
_RETRY_S = 0.2


@final
class ResetHeadApi:
    """ResetHead of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._resolver = resolver

    async def reset_head(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one ResetHead.

        Returns: the status, and the ResetHeadResponse that says so.
        Raises: RpcFailed: the request is malformed; UNAVAILABLE: brokers that serve the journal, or
            may store content of it, are out of reach, or the store cannot be listed.
        Cancellation: leaves open whether it was done.
        """
        request = decode(pb.ResetHeadRequest, raw, validate_journal_request)
        found = await find(
            self._resolver,
            request,
            claims,
            may_proxy=not request.HasField("header"),
            require_primary=True,
            min_revision=request.min_etcd_revision,
        )
        if found.is_remote:
            return await self._forward(request, found.resolution)
        response, status = pb.ResetHeadResponse(), found.status
        if found.replica is not None:
            status = await self._reset(found.replica, request, response)
        response.status = status.value  # type: ignore[assignment]
        found.resolution.header.into_pb(response.header)
        return status, response.SerializeToString()

    async def _reset(
        self, replica: Replica, request: pb.ResetHeadRequest, response: pb.ResetHeadResponse
    ) -> Status:
        """Reset the head of a journal of ours, if appends are refused. Returns: the status."""
        found = await self._ask(replica)
        awaited = found.holders if isinstance(found, HoldersAway) else ()
        if isinstance(found, Outcome) and found.status is not Status.INDEX_HAS_GREATER_OFFSET:
            return _told(replica, found, response)
        response.was_refused = True
        problem = await replica.wait_ready()
        if problem:
            response.store_health_error = problem
            return Status.FRAGMENT_STORE_UNHEALTHY
        # These offsets are about to be given out again. A broker that stored its old content there later
        # would contradict what is appended from now on.
        # After a restore it is not known which spools are awaited; the reset gives up what they hold.
        is_restored = isinstance(found, HoldersAway) and not awaited
        if is_restored and request.dry_run:
            ends = await spool_ends(self._context, replica.name)
            response.head = max(replica.head, *ends.values())
            return Status.OK
        gives_up = (request.give_up or is_restored) and not request.dry_run
        is_settled = await replica.settle_others(gives_up=gives_up)
        if not is_settled and (gives_up or not awaited):
            raise NotNow(
                f"{replica.name}: a broker may still store content of it, or the store could not be "
                "listed (see the logs; end brokers that hang)"
            )
        response.head = replica.head
        self._add_awaited(awaited, response)
        if request.dry_run or (awaited and not request.give_up):
            return Status.OK
        return _told(replica, await _barrier(replica, resets_head=True), response)

    async def _ask(self, replica: Replica) -> Outcome | HoldersAway:
        """The outcome of an append without content, once it is not about to change.

        Raises: RpcFailed: it is unknown.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + self._context.config.append_wait_s
        while True:
            is_late = clock.monotonic() >= deadline
            try:
                outcome = await _barrier(replica)
                if is_late or outcome.status is not Status.INSUFFICIENT_JOURNAL_BROKERS:
                    return outcome
            except HoldersAway as err:
                # A holder that runs may be about to serve the journal, or to store what it has.
                if is_late or not any(map(self._is_running, err.holders)):
                    return err
            except RpcFailed as err:
                if is_late or err.code is not Code.UNAVAILABLE:
                    raise
            await asyncio.sleep(_RETRY_S)

    def _is_running(self, holder: Holder) -> bool:
        return holder.process in self._context.space.state.members

    def _add_awaited(self, holders: tuple[Holder, ...], response: pb.ResetHeadResponse) -> None:
        for holder in sorted(holders, key=lambda one: one.process):
            response.awaited.add(id=holder.process.to_pb(), is_running=self._is_running(holder))

    async def _forward(
        self, request: pb.ResetHeadRequest, found: Resolution
    ) -> tuple[Status, bytes]:
        endpoint, peers = endpoint_of(found), self._context.peers
        call = PeerCall(peers, endpoint, _RESET_HEAD, Capability.APPLY, request.journal)
        try:
            raw = await call.unary(with_header(request, found.header))
        except PeerFailed as err:
            raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
        return Status.from_wire(pb.ResetHeadResponse.FromString(raw).status), raw


async def _barrier(replica: Replica, *, resets_head: bool = False) -> Outcome:
    mode = AppendSuspend.SUSPEND_KEEP
    request = AppendRequest(replica.name, suspend=mode, resets_head=resets_head)
    outcome = await barrier(replica.appender, request)
    if outcome.is_remote:
        raise NotNow(f"{replica.name}: another broker takes it over")
    return outcome


def _told(replica: Replica, outcome: Outcome, response: pb.ResetHeadResponse) -> Status:
    """Put the outcome of an append into a response. Returns: its status."""
    if outcome.commit is not None:
        response.head = outcome.commit.end
    else:
        response.head = replica.head
    response.store_health_error = outcome.store_health_error
    return outcome.status
