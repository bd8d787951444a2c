"""Serves what brokers list: journals (once, or as a watch), brokers, fragments, the health of stores; and Apply."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.broker.api.routing import (
    check_fence,
    decode,
    find_readable,
    rules,
    wait_known,
)
from gazette_platform.broker.journal.resolver import Stopped
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.etcd import Compare, Delete, Operation, Put
from gazette_platform.keyspace import item_key
from gazette_platform.ops.tasks import Turns
from gazette_platform.ops.text import SECOND_NS, duration_from_pb
from gazette_platform.protocol import (
    Fragment,
    Header,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
    Route,
    Status,
    validate_apply_change,
    validate_fragments_request,
    validate_health_request,
    validate_list_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS, Capability, Forbidden
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.stores import delete_probe, health_check, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.api.routing import Proxy
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.keyspace import Item
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.protocol.labels import SelectorMatcher
    from gazette_platform.serving.interface import Send
    from gazette_platform.stores import FragmentStore

# As many as Gazette sends: 25 journals fit the buffers of 32 KiB that its clients pool.
_JOURNALS_PER_MESSAGE = 25

# Clients refuse messages beyond 4 MiB, and one spec may have more than one.
_MESSAGE_BYTES_MAX = 1 << 20

# Far beyond the 128 operations that etcd takes in a transaction by default.
_CHANGES_MAX = 8192

# A transaction may fail by a comparison that we added. It is built again after a moment, in which
# the watch brings the change that it failed by.
_RETRIES_MAX = 3
_RETRY_S = 0.05


@final
class ListApi:
    """List, ListBrokers and Apply RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._resolver = resolver
        self._state = context.space.state
        self._changed = asyncio.Event()
        self.is_stopping = False
        context.space.observe(self._wake)

    def stop_watches(self) -> None:
        """End open watches without an error, so that their clients turn to another broker."""
        self.is_stopping = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---------------------------------------------------------------------------------- List
    async def list_journals(self, raw: bytes, send: Send, claims: Claims = ALL_CLAIMS) -> None:
        """Serve one List: the journals that both the request and its caller's claims select.

        Sends ListResponses; the first of a snapshot has status and header. A watch ends each
        snapshot with an empty response, and sends another snapshot when the selected specs changed.

        Raises: RpcFailed: the request is malformed. Cancellation: safe.
        """
        request = decode(pb.ListRequest, raw, validate_list_request)
        space = self._context.space
        if request.watch and request.HasField("watch_resume"):
            await space.wait_for_revision(request.watch_resume.etcd.revision + 1)
        selector = _with_prefix_by_name(LabelSelector.from_pb(request.selector))
        # Clients sign the selector that they ask with, so claims may have the legacy label, too.
        selectors = dict.fromkeys((selector, _with_prefix_by_name(claims.selector)))
        matchers = [each.compiled() for each in selectors if each.include or each.exclude]
        last: tuple[int, int] | None = None
        while True:
            changed = self._changed
            header = Header(self._resolver.process_id, Route(), space.header)
            found, newest = await self._matching(matchers)
            if last != (len(found), newest):
                last = (len(found), newest)
                await self._send_snapshot(header, found, send)
                if request.watch:
                    await send(pb.ListResponse().SerializeToString())
            if not request.watch:
                return
            await changed.wait()
            if self.is_stopping:
                return

    async def _matching(
        self, matchers: list[SelectorMatcher]
    ) -> tuple[list[tuple[str, Item]], int]:
        """The selected journals as of now, by name, and their newest revision. Other work goes on meanwhile."""
        names, items = list(self._state.journals), dict(self._state.items)
        found, newest, turns = [], 0, Turns()
        for name in names:
            await turns.take()
            item = items[name]
            if matchers:
                labels = (*item.spec.labels, Label("name", name))
                if not all(matcher.matches(labels) for matcher in matchers):
                    continue
            found.append((name, item))
            newest = max(newest, item.mod_revision)
        return found, newest

    async def _send_snapshot(
        self, header: Header, found: list[tuple[str, Item]], send: Send
    ) -> None:
        """Send one snapshot: specs as of the header's revision, routes as of now."""
        message, size, turns = pb.ListResponse(), 0, Turns()
        header.into_pb(message.header)
        for name, item in found:
            if len(message.journals) == _JOURNALS_PER_MESSAGE or size > _MESSAGE_BYTES_MAX:
                await send(message.SerializeToString())
                message, size = pb.ListResponse(), 0
                await turns.take()
            listed = message.journals.add(
                mod_revision=item.mod_revision,
                create_revision=self._context.identity.revision_of(name, item.create_revision),
            )
            listed.spec.CopyFrom(item.spec.to_pb())
            self._state.route_of(name).into_pb(listed.route)
            size += listed.ByteSize()
        await send(message.SerializeToString())

    # --------------------------------------------------------------------------- ListBrokers
    async def list_brokers(
        self,
        raw: bytes,  # noqa: ARG002  has no fields
        claims: Claims = ALL_CLAIMS,  # noqa: ARG002  routes name brokers to every caller, too
    ) -> tuple[Status, bytes]:
        """Serve one ListBrokers: the members that etcd knows now, by zone and suffix.

        Returns: OK, and the ListBrokersResponse. Cancellation: safe.
        """
        members = self._state.members
        response = admin_pb.ListBrokersResponse(
            brokers=[members[each].spec.to_pb() for each in sorted(members)]
        )
        Header(self._resolver.process_id, Route(), self._context.space.header).into_pb(
            response.header
        )
        return Status.OK, response.SerializeToString()

    # --------------------------------------------------------------------------------- Apply
    async def apply(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one Apply: make all changes in one etcd transaction, and wait until our mirror has it.

        Returns: the status, and the ApplyResponse that says so.
        Raises: RpcFailed: the request is malformed. Forbidden: a change is beyond the claims.
            EtcdError: etcd did not answer.
        Cancellation: leaves open whether it was applied.
        """
        request = pb.ApplyRequest.FromString(raw)
        with rules():
            await _validate(request)
        compares, operations, is_implied = await self._transaction(request, claims)
        result = await self._context.etcd.txn(compares, operations)
        for _ in range(_RETRIES_MAX if is_implied else 0):
            if result.succeeded:
                break
            await asyncio.sleep(_RETRY_S)
            compares, operations, _ = await self._transaction(request, claims)
            result = await self._context.etcd.txn(compares, operations)
        status = Status.OK if result.succeeded else Status.ETCD_TRANSACTION_FAILED
        if result.succeeded and await self._changed_anything(request):
            await self._context.space.wait_for_revision(result.header.revision)
        header = self._context.space.header
        etcd = type(header)(
            header.cluster_id, header.member_id, result.header.revision, header.raft_term
        )
        response = pb.ApplyResponse(status=status.value)  # type: ignore[arg-type]
        Header(self._resolver.process_id, Route(), etcd).into_pb(response.header)
        return status, response.SerializeToString()

    async def _transaction(
        self, request: pb.ApplyRequest, claims: Claims
    ) -> tuple[list[Compare], list[Operation], bool]:
        """The transaction that a request asks for, after checking that its caller may make it.

        Returns: comparisons; operations; and whether some comparisons are ours rather than the
            caller's. These make sure that a journal still is what the claims were held against.
        Raises: Forbidden: a change is beyond the claims. RpcFailed: it would mix two journals.
        """
        turns = Turns()
        specs: list[JournalSpec] = []
        for change in request.changes:
            if change.HasField("upsert"):
                specs.append(spec := JournalSpec.from_pb(change.upsert))
                self._authorize(spec.name, spec.label_set_with_name(), claims)
                await turns.take()
        deleted = {change.delete for change in request.changes if change.delete}
        for name in deleted:
            self._authorize(name, LabelSet.of(name=name), claims)
        # Only once all are authorized: its errors name other journals.
        with rules():
            await self._context.guard.check_apply(specs, deleted, claims)
        compares: list[Compare] = []
        operations: list[Operation] = []
        is_limited = bool(claims.selector.include or claims.selector.exclude)
        is_implied = False
        upserts = iter(specs)
        for change in request.changes:
            name = change.upsert.name or change.delete
            key = item_key(self._context.config.etcd_prefix, name)
            if change.expect_mod_revision != -1:
                compares.append(Compare.mod(key, change.expect_mod_revision))
            item = self._state.items.get(name)
            judged = item.mod_revision if item is not None else 0
            if is_limited and judged != change.expect_mod_revision:
                # The claims were held against the spec in our mirror, which may be out of date.
                compares.append(Compare.mod(key, judged))
                is_implied = True
            if change.HasField("upsert"):
                value = next(upserts).to_pb()
                operations.append(Put(key, value.SerializeToString(deterministic=True)))
            else:
                operations.append(Delete(key))
            await turns.take()
        return compares, operations, is_implied

    def _authorize(self, name: str, labels: LabelSet, claims: Claims) -> None:
        """Refuse a journal whose present or future labels are beyond the claims."""
        item = self._state.items.get(name)
        if not claims.match(labels) or (
            item is not None and not claims.match(item.spec.label_set_with_name())
        ):
            raise Forbidden(f"not authorized to {name}")

    async def _changed_anything(self, request: pb.ApplyRequest) -> bool:
        """Whether a transaction that succeeded has a revision of its own to wait for.

        It has none if there are no changes, or if all of them delete journals that do not exist,
        without expecting a revision.
        """
        if any(c.HasField("upsert") or c.expect_mod_revision > 0 for c in request.changes):
            return True
        return any(c.delete in self._state.items for c in request.changes)


async def _validate(request: pb.ApplyRequest) -> None:
    if len(request.changes) > _CHANGES_MAX:
        raise ValidationError(
            f"invalid number of Changes ({len(request.changes)}; expected <= {_CHANGES_MAX})"
        )
    turns = Turns()
    for index, change in enumerate(request.changes):
        validate_apply_change(index, change)
        await turns.take()


def _with_prefix_by_name(selector: LabelSelector) -> LabelSelector:
    """Rewrite the legacy label ``prefix`` to ``name:prefix``."""

    def rewrite(labels: LabelSet) -> LabelSet:
        return LabelSet(
            tuple(
                sorted(
                    Label("name", label.value, prefix=True) if label.name == "prefix" else label
                    for label in labels
                )
            )
        )

    return LabelSelector(rewrite(selector.include), rewrite(selector.exclude))


_PAGE_LIMIT = 1000

# Clients refuse messages beyond 4 MiB.
_PAGE_BYTES_MAX = 2 << 20

# Of one CheckStores. A store costs memory, and some of a millisecond, until it was looked at.
_STORES_MAX = 256


@final
class FragmentsApi:
    """ListFragments, FragmentStoreHealth and CheckStores RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica], proxy: Proxy) -> None:
        self._context = context
        self._resolver = resolver
        self._proxy = proxy

    async def list_fragments(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one page of ListFragments, once the stores were listed.

        Returns: the status, and the FragmentsResponse that says so.
        Raises: RpcFailed: a malformed request, or the replica closed meanwhile.
        Cancellation: safe.
        """
        request = decode(pb.FragmentsRequest, raw, validate_fragments_request)
        found = await find_readable(self._resolver, request, claims)
        header, replica = found.resolution.header, found.replica
        request.page_limit = request.page_limit or _PAGE_LIMIT
        if found.is_remote:
            return await self._proxy.list_fragments(request, header)
        if replica is not None and not request.do_not_proxy:
            better = self._proxy.better_placed(replica, replica.missing_at)
            if better is not None:
                return await self._proxy.list_fragments(request, better.header)
        response = pb.FragmentsResponse(status=found.status.value)  # type: ignore[arg-type]
        header.into_pb(response.header)
        if replica is not None:
            await wait_known(replica, timeout_s=self._context.config.append_wait_s)
            if (
                replica.is_primary
            ):  # clients continue after the last one, so none before may be missing
                await replica.wait_filled()
                check_fence(replica)
            fragments = await replica.index.inspect()
            if fragments is None:
                raise Stopped
            await self._fill(response, request, replica, list(fragments))
        return found.status, response.SerializeToString()

    async def _fill(
        self,
        response: pb.FragmentsResponse,
        request: pb.FragmentsRequest,
        replica: Replica,
        fragments: Iterable[Fragment],
    ) -> None:
        ttl_s = (
            duration_from_pb(request.signatureTTL) / SECOND_NS
            if request.HasField("signatureTTL")
            else 0.0
        )
        size, turns = 0, Turns()
        for fragment in fragments:
            if fragment.begin < request.next_page_token or not _is_within(request, fragment):
                continue
            await turns.take()
            if len(response.fragments) == request.page_limit or size > _PAGE_BYTES_MAX:
                response.next_page_token = fragment.begin
                return
            summed = await replica.summed(fragment)
            if summed is None:
                raise Stopped
            listed = response.fragments.add()
            summed.into_pb(listed.spec)
            if ttl_s > 0 and summed.backing_store:
                store = self._context.stores.get(summed.backing_store)
                listed.signed_url = await store.sign_get(summed.content_path, ttl_s)
            size += listed.ByteSize()

    async def fragment_store_health(
        self, raw: bytes, claims: Claims = ALL_CLAIMS
    ) -> tuple[Status, bytes]:
        """Serve one FragmentStoreHealth: the store's own checks, and a delete probe if asked.

        A check writes to the store. So a journal within `claims` must name the store, unless the
        caller may apply specs that name any store.

        Returns: the status, and the FragmentStoreHealthResponse that says so.
        Raises: RpcFailed: a malformed request. Forbidden: the store is beyond the claims.
        Cancellation: safe.
        """
        request = decode(pb.FragmentStoreHealthRequest, raw, validate_health_request)
        is_in_use = self._authorize(request, claims)
        problem = ""
        try:
            await self._check_store(request, is_in_use=is_in_use)
        except GazetteError as err:
            problem = str(err)
        status = Status.FRAGMENT_STORE_UNHEALTHY if problem else Status.OK
        response = pb.FragmentStoreHealthResponse(
            status=status.value,  # type: ignore[arg-type]
            store_health_error=problem,
        )
        header = Header(self._resolver.process_id, Route(), self._context.space.header)
        header.into_pb(response.header)
        return status, response.SerializeToString()

    async def check_stores(
        self,
        raw: bytes,
        claims: Claims = ALL_CLAIMS,  # noqa: ARG002  who may apply specs may name any store
    ) -> tuple[Status, bytes]:
        """Serve one CheckStores. No store is asked for anything.

        Returns: OK, and the CheckStoresResponse.
        Raises: RpcFailed: more stores than are checked at a time. Cancellation: safe.
        """
        request = decode(admin_pb.CheckStoresRequest, raw, _validate_stores)
        response = admin_pb.CheckStoresResponse()
        Header(self._resolver.process_id, Route(), self._context.space.header).into_pb(
            response.header
        )
        turns = Turns()
        for url in request.stores:
            await turns.take()
            try:
                self._context.guard.check_allowed(url)
                _ = self._open(url)
            except GazetteError as err:
                response.refused.add(store=url, reason=str(err))
        return Status.OK, response.SerializeToString()

    def _open(self, url: str) -> FragmentStore:
        """A store of its own: callers could otherwise fill this broker with stores and their checks.

        Raises: GazetteError: it can never be used.
        """
        root, file_only = self._context.config.file_root, self._context.config.file_only
        return open_store(url, file_root=root, file_only=file_only, makes_folder=False)

    def _authorize(self, request: pb.FragmentStoreHealthRequest, claims: Claims) -> bool:
        """Refuse a store, or a folder of one, that the caller has no business with.

        Returns: whether journals name the store.
        Raises: Forbidden.
        """
        url, guard = request.fragment_store, self._context.guard
        is_limited = bool(claims.selector.include or claims.selector.exclude)
        if not is_limited and claims.capability & Capability.APPLY:
            return any(True for _ in guard.journals_with(url, claims))
        own = guard.journals_with(url, claims)
        folder = request.check_delete_prefix
        if not any(folder.startswith(f"{name}/") or not folder for name in own):
            raise Forbidden(
                f"not authorized to {folder or 'any journal'} in {url} (only a token with APPLY for "
                "all journals checks what no journal of its bearer's names)"
            )
        return True

    async def _check_store(
        self, request: pb.FragmentStoreHealthRequest, *, is_in_use: bool
    ) -> None:
        """Raises: GazetteError: the store is unhealthy, not allowed, or not there."""
        url, context = request.fragment_store, self._context
        context.guard.check_allowed(url)
        store: FragmentStore
        if is_in_use:
            store = active = context.stores.get(url)
            health = active.health
            while not health.checks:
                health = await active.wait_health_change(health)
            if health.error is not None:
                raise health.error
        else:
            store = self._open(url)
            await health_check(store)
        if request.check_delete:
            await delete_probe(store, prefix=request.check_delete_prefix)


def _validate_stores(request: admin_pb.CheckStoresRequest) -> None:
    if len(request.stores) > _STORES_MAX:
        raise ValidationError(
            f"too many Stores ({len(request.stores)}; at most {_STORES_MAX} at a time)"
        )


def _is_within(request: pb.FragmentsRequest, fragment: Fragment) -> bool:
    """Whether a fragment was stored within the window that the request asks for.

    Source: Gazette. Local fragments have no time yet: the lower bound lets them pass, and an upper
    bound drops them. The upper bound is inclusive, although Gazette's documentation says otherwise.
    """
    stored_at = fragment.mod_time
    if stored_at != 0 and stored_at < request.begin_mod_time:
        return False
    end = request.end_mod_time
    return end == 0 or (stored_at != 0 and stored_at <= end)
