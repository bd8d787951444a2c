"""The console: pages that a broker serves at ``/console`` on its HTTP port, and the routes that they ask.

The pages are files of `static`: plain modules of the browser, without a build step. They ask ``/console/api/``, which
makes the broker's own RPCs with the token that the page sends. So a page shows what that token may list and read, and
no more. Nothing here runs, and nothing is kept, while no page asks.

Journal names, labels and content are untrusted. The pages never make markup of text, and the headers here forbid
scripts, styles and connections of other origins, and frames.

| request | answers |
|---|---|
| ``GET /console/`` , ``/console/static/FILE`` | the pages |
| ``GET api/journals?selector=&known=`` | journals, as lines of JSON: lists of rows, then ``{"complete": …, "revision": …}``; or only ``{"unchanged": true}`` since the revision `known` |
| ``POST api/states`` ``{"journals": […]}`` | their first bytes, write heads and unpersisted bytes |
| ``POST api/stores`` ``{"stores": […]}`` | their health |
| ``GET api/journal?name=`` | its spec as YAML |
| ``GET api/fragments?name=&token=&since=&limit=`` | a page of its fragments |
| ``GET api/brokers`` | the brokers of the cluster with their vitals, and the last hour of this one |
| ``GET api/shards`` | shards of the consumers that the broker knows |
| ``POST api/progress`` ``{"consumer": …, "shards": […]}`` | how far they are |
| ``POST api/unassign`` ``{"consumer": …, "shard": …}`` | the one change that the console makes |
| ``GET api/tables`` | tables of the lake that the broker knows |

A tail is the HTTP gateway's: events of ``GET /JOURNAL?offset=&block=true``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import orjson
from aiohttp import web

from gazette_platform.console.calls import BrokerCalls, History, PeerVitals
from gazette_platform.console.shards_and_tables import Consumers, Lake
from gazette_platform.errors import GazetteError, StatusError, ValidationError
from gazette_platform.protocol.auth import Capability, Forbidden, Unauthenticated
from gazette_platform.serving.http_server import (
    JSON_TYPE,
    ClientGone,
    Origins,
    RestRoutes,
    caller_metadata,
    error_of,
    outcome_status,
    written,
)
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import Metadata, Rpc


__all__ = ["add_console"]


class Service(Protocol):
    """The broker, as its transport calls it."""

    @property
    def rpcs(self) -> Mapping[str, Rpc]:
        """All RPCs, by name."""
        ...

    @property
    def endpoint(self) -> str:
        """Where clients reach the broker."""
        ...

    def vitals(self) -> Mapping[str, float]:
        """What the broker has done and holds."""
        ...

    async def peer_vitals(self, endpoint: str) -> Mapping[str, float]:
        """The vitals of another broker. Raises: RpcFailed."""
        ...

    def claims(self, metadata: Metadata, required: Capability) -> Claims:
        """The claims of a caller. Raises: Unauthenticated; Forbidden."""
        ...


_SCRIPTS: Final = "api brokers dom format journal journals main shards tables"
_FILES: Final = {
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
    "index.html": "text/html",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS.split()},
}

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NEVER_STORE: Final = {**_HEADERS, "Cache-Control": "no-store"}
_ASK_AGAIN: Final = {**_HEADERS, "Cache-Control": "no-cache"}
_LINES: Final = "application/x-ndjson"
_NUMBER_DIGITS_MAX: Final = 19


def add_console(
    service: Service, config: BrokerConfig, tasks: TaskGroup, router: web.UrlDispatcher
) -> None:
    """Add the console of a broker to the routes of its HTTP port. `tasks` owns the task that takes samples."""
    _Console(service, config, tasks).add_to(router)


@final
class _Console(RestRoutes):
    """Serves the pages and their API."""

    def __init__(self, service: Service, config: BrokerConfig, tasks: TaskGroup) -> None:
        super().__init__(Origins(()))  # pages of other origins see no answer
        self._service = service
        self._calls = BrokerCalls(service.rpcs)
        self._consumers = Consumers(config)
        self._lake = Lake(config)
        self._history = History(service.vitals)
        self._peers = PeerVitals(service.peer_vitals)
        tasks.spawn(self._history.run(), name="console")

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes. Other paths below ``/console`` stay with journals of that name."""
        # An answer that is written piece by piece would have a body even to HEAD.
        add_get = partial(router.add_get, allow_head=False)
        add_get("/console", _to_pages)
        add_get("/console/", partial(_file, "index.html"))
        for name in _FILES:
            add_get(f"/console/static/{name}", partial(_file, name))
        add_get("/console/api/journals", self._list)
        for reads in (self._journal, self._fragments, self._brokers, self._shards, self._tables):
            add_get(f"/console/api/{reads.__name__[1:]}", partial(self._answered, reads))
        for posts in (self._states, self._stores, self._progress, self._unassign):
            router.add_post(f"/console/api/{posts.__name__[1:]}", partial(self._answered, posts))

    async def _answered(
        self,
        handler: Callable[[web.Request, Metadata], Awaitable[Any]],
        request: web.Request,
    ) -> web.Response:
        """Answer a request with what its handler gives. Cancellation: the page has gone."""
        try:
            if request.method == "POST":
                _check_own_page(request)
            value = await handler(request, caller_metadata(request))
        except (GazetteError, RpcFailed, TimeoutError) as err:
            return _refusal(err)
        body = orjson.dumps(value)
        return web.Response(body=body, content_type=JSON_TYPE, headers=_NEVER_STORE)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        """Write journals as they are listed: the first ones are shown before the last ones are known."""
        response = web.StreamResponse(headers={**_NEVER_STORE, "Content-Type": _LINES})

        async def take(rows: list[dict[str, Any]]) -> None:
            try:
                if not response.prepared:
                    await response.prepare(request)
            except ConnectionError as err:
                raise ClientGone(str(err)) from err
            await written(request, response.write, _line(rows))

        last: dict[str, Any]
        try:
            selector = request.query.get("selector", "")
            try:
                last = await self._calls.journals(
                    selector, caller_metadata(request), take, known=_number(request, "known")
                )
                await take([])
            except (GazetteError, RpcFailed) as err:
                if isinstance(err, ClientGone):
                    raise
                if not response.prepared:
                    return _refusal(err)
                last = {"error": str(err)}
            await written(request, response.write, _line(last))
        except ClientGone as err:
            raise asyncio.CancelledError from err
        await response.write_eof()
        return response

    async def _journal(self, request: web.Request, metadata: Metadata) -> Any:
        return await self._calls.journal(request.query.get("name", ""), metadata)

    async def _fragments(self, request: web.Request, metadata: Metadata) -> Any:
        return await self._calls.fragments(
            request.query.get("name", ""),
            metadata,
            token=_number(request, "token"),
            since=_number(request, "since"),
            limit=_number(request, "limit"),
        )

    async def _states(self, request: web.Request, metadata: Metadata) -> Any:
        return await self._calls.states(await self._texts(request, "journals"), metadata)

    async def _stores(self, request: web.Request, metadata: Metadata) -> Any:
        self._service.claims(metadata, Capability.READ)
        return await self._calls.stores(await self._texts(request, "stores"), metadata)

    async def _brokers(self, _: web.Request, metadata: Metadata) -> Any:
        brokers = await self._calls.brokers(metadata)
        peers = [one["endpoint"] for one in brokers if not one["is_own"]]
        found = {**await self._peers.of(peers), self._service.endpoint: self._service.vitals()}
        for one in brokers:
            vitals = found.get(one["endpoint"], "")
            one["error" if isinstance(vitals, str) else "vitals"] = vitals
        return {"brokers": brokers, "own": self._history.all()}

    async def _shards(self, _: web.Request, metadata: Metadata) -> Any:
        claims = self._service.claims(metadata, Capability.LIST)
        return await self._consumers.shards(claims, metadata)

    async def _progress(self, request: web.Request, metadata: Metadata) -> Any:
        claims = self._service.claims(metadata, Capability.READ)
        body = await self._object(request)
        shards = _texts_of(body, "shards")
        return await self._consumers.progress(_text_of(body, "consumer"), shards, claims, metadata)

    async def _unassign(self, request: web.Request, metadata: Metadata) -> Any:
        claims = self._service.claims(metadata, Capability.APPLY)
        body = await self._object(request)
        consumer, shard = _text_of(body, "consumer"), _text_of(body, "shard")
        return {"unassigned": await self._consumers.unassign(consumer, shard, claims, metadata)}

    async def _tables(self, _: web.Request, metadata: Metadata) -> Any:
        claims = self._service.claims(metadata, Capability.LIST)
        return await self._lake.tables(claims, metadata, self._service.endpoint)

    async def _object(self, request: web.Request) -> dict[str, Any]:
        """The object in the body. Raises: ValidationError."""
        try:
            found = orjson.loads(await self.read_body(request))
        except orjson.JSONDecodeError as err:
            raise ValidationError(f"the body is not JSON: {err}") from err
        if not isinstance(found, dict):
            raise ValidationError("the body is not an object of JSON")
        return found

    async def _texts(self, request: web.Request, key: str) -> list[str]:
        return _texts_of(await self._object(request), key)


def _texts_of(body: Mapping[str, Any], key: str) -> list[str]:
    """The list of texts in a body, each once. Raises: ValidationError."""
    found = body.get(key)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValidationError("expected a list of texts", path=key)
    return [*dict.fromkeys(found)]


def _text_of(body: Mapping[str, Any], key: str) -> str:
    """A text in a body. Raises: ValidationError."""
    found = body.get(key)
    if not isinstance(found, str):
        raise ValidationError("expected a text", path=key)
    return found


async def _to_pages(_: web.Request) -> web.Response:
    return web.Response(
        status=HTTPStatus.PERMANENT_REDIRECT, headers={**_HEADERS, "Location": "/console/"}
    )


async def _file(name: str, _: web.Request) -> web.Response:
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    return web.Response(
        body=content, content_type=_FILES[name], charset="utf-8", headers=_ASK_AGAIN
    )


def _check_own_page(request: web.Request) -> None:
    """Raises: ValidationError: a page of another origin may have made the request.

    Pages cannot send JSON to another origin without asking first, and the console allows none.
    """
    headers = request.headers
    if request.content_type != JSON_TYPE:
        raise ValidationError(f"expected a body of {JSON_TYPE}", path="Content-Type")
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise ValidationError("pages of other origins may not ask this", path="Sec-Fetch-Site")


def _number(request: web.Request, key: str) -> int:
    text = request.query.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < _NUMBER_DIGITS_MAX):
        raise ValidationError("expected a number", path=key)
    return int(text)


def _line(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _refusal(err: Exception) -> web.Response:
    """The answer to a request that failed."""
    text = str(err) or type(err).__name__
    if isinstance(err, RpcFailed):
        status, text = error_of(err)[1], err.text
    elif isinstance(err, Forbidden):
        status = HTTPStatus.FORBIDDEN
    elif isinstance(err, Unauthenticated):
        status = HTTPStatus.UNAUTHORIZED
    elif isinstance(err, ValidationError):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(err, StatusError):
        status = outcome_status(err.status)
    elif isinstance(err, TimeoutError):
        status, text = HTTPStatus.GATEWAY_TIMEOUT, "the brokers did not answer in time"
    else:
        status = HTTPStatus.BAD_GATEWAY
    headers = dict(_NEVER_STORE)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    body = orjson.dumps({"error": text})
    return web.Response(status=status, body=body, content_type=JSON_TYPE, headers=headers)
