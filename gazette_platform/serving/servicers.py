"""Servicers of generated code as `Rpc`s, so that our own HTTP/2 serves them.

A method gets a context with the attributes that `grpc.aio` documents. A coroutine or an asynchronous
generator runs on the event loop. Any other method runs in a thread, and its context waits where that of a
coroutine is awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from base64 import b64decode, b64encode
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar, final

from gazette_platform.errors import SetupError
from gazette_platform.serving.interface import Code, Kind, Rpc, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from gazette_platform.serving.interface import Metadata, ServedCall

_log = logging.getLogger(__name__)

T = TypeVar("T")

_KINDS: Final = {
    (False, False): Kind.UNARY,
    (True, False): Kind.CLIENT_STREAM,
    (False, True): Kind.SERVER_STREAM,
    (True, True): Kind.BIDI_STREAM,
}

# What gRPC allows in names and in values that are text.
_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_TEXT: Final = re.compile(r"[\x20-\x7e]*")
_OURS: Final = frozenset(("content-type", "grpc-status", "grpc-message"))
_BINARY: Final = "-bin"

# Clients drop more by default.
_METADATA_BYTES_MAX: Final = 8192


def rpcs_of(add: Callable[[Any, Any], None], servicer: Any) -> Iterator[tuple[Kind, Rpc]]:
    """Return the methods of a servicer, each with its kind.

    The handlers take both directions, whatever the kind: a context may greet, read and write in any method.

    Args:
        add: generated, as ``add_NGramServicer_to_server``.

    Raises: SetupError: `servicer` does not have the methods that `add` wants.
    """
    registry = _Registry()
    try:
        add(servicer, registry)
    except AttributeError as err:
        raise SetupError(
            f"{type(servicer).__name__} is not a servicer of this service: {err}"
        ) from err
    for service in registry.services:
        name = service.service_name()
        for method in dir(servicer):
            handler = service.service(_Asked(f"/{name}/{method}"))
            if handler is not None:
                kind = _KINDS[handler.request_streaming, handler.response_streaming]
                yield kind, Rpc(name, method, Kind.BIDI_STREAM, _Method(handler).serve)


class _Asked(NamedTuple):
    """A call, as generated code is asked for its handler."""

    method: str
    invocation_metadata: tuple[()] = ()


@final
class _Registry:
    """What generated code takes for a server."""

    def __init__(self) -> None:
        self.services: list[Any] = []

    def add_generic_rpc_handlers(self, services: Iterable[Any]) -> None:
        """Take services, which all generated code gives."""
        self.services += services

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Ignore the handlers of a service, which only newer code gives."""


@final
class _Method:
    """A method of a servicer."""

    def __init__(self, handler: Any) -> None:
        self._takes_stream: bool = handler.request_streaming
        self._gives_stream: bool = handler.response_streaming
        self._invoke: Callable[[Any, Any], Any] = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        self._is_coroutine = inspect.iscoroutinefunction(self._invoke)
        self._is_async = self._is_coroutine or inspect.isasyncgenfunction(self._invoke)
        self._decode: Callable[[bytes], Any] = handler.request_deserializer or bytes
        self.encode: Callable[[Any], bytes] = handler.response_serializer or bytes

    def decode(self, raw: bytes) -> Any:
        """Return a request as the application has it, whose own decoders expect nothing but bytes."""
        return self._decode(bytes(raw))

    async def serve(self, call: ServedCall, metadata: Metadata) -> None:
        """As `BidiStream` has it."""
        context = (_AsyncContext if self._is_async else _ThreadContext)(self, call, metadata)
        try:
            request = None if self._takes_stream else await self._request(call)
            if isinstance(context, _AsyncContext):
                await self._run(request, context)
            else:
                await asyncio.to_thread(self._run_in_thread, request, context)
        except asyncio.CancelledError:
            context.is_cancelled = True
            raise
        except Exception as err:
            context.check()
            failure = context.failure()
            if failure is None or isinstance(err, RpcFailed):
                raise
            _log.error("a method of a servicer failed unexpectedly", exc_info=err)
            raise RpcFailed(failure.code, f"Unexpected {type(err)}: {err}") from err
        context.end()

    async def _request(self, call: ServedCall) -> Any:
        raw = await call.next()
        if raw is None:
            raise RpcFailed(Code.INTERNAL, "the call has no request")
        return self.decode(raw)

    async def _run(self, request: Any, context: _AsyncContext) -> None:
        if self._takes_stream:
            request = _Requests(context)
        if not self._gives_stream:
            response = await self._invoke(request, context)
            context.end()
            await context.write(response)
        elif self._is_coroutine:
            await self._invoke(request, context)
        else:
            async with aclosing(self._invoke(request, context)) as responses:
                async for response in responses:
                    await context.write(response)

    def _run_in_thread(self, request: Any, context: _ThreadContext) -> None:
        if self._takes_stream:
            request = context.requests()
        response = self._invoke(request, context)
        if not self._gives_stream:
            context.end()
        for each in response if self._gives_stream else (response,):
            context.wait(context.send(each))


class _Datum(NamedTuple):
    """Metadata of a caller; the value is binary if the key says so."""

    key: str
    value: str | bytes


class _Context:
    """What the contexts of all methods have.

    Attributes:
        is_cancelled: whether the caller has left, or the call was ended for another reason.
    """

    def __init__(self, method: _Method, call: ServedCall, metadata: Metadata) -> None:
        self._method = method
        self._call = call
        self._metadata = metadata
        self._code: Any = None
        self._details = ""
        self._trailing: tuple[Any, ...] = ()
        self._is_aborted = False
        self._task = asyncio.current_task()
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self.is_cancelled = False

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"our own HTTP/2 has no {name} for methods of servicers; --consumer.wire=grpc may have it"
        )

    # ----------------------------------------------------------------------- what the caller says
    def invocation_metadata(self) -> tuple[_Datum, ...]:
        return tuple(_decoded(self._metadata))

    def peer(self) -> str:
        return self._call.peer

    def time_remaining(self) -> float | None:
        return self._call.time_left_s()

    # ---------------------------------------------------------------------- what the caller hears
    def set_code(self, code: Any) -> None:
        _code_of(code)
        self._code = code

    def code(self) -> Any:
        return self._code

    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple(trailing_metadata)
        self._call.trailing = _encoded(self._trailing)

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._trailing

    # ------------------------------------------------------------------------------ what became of it
    def done(self) -> bool:
        return self._call.is_closed

    def cancelled(self) -> bool:
        return self.is_cancelled

    # ----------------------------------------------------------------------------- for the method
    def check(self) -> None:
        """Raise RpcFailed if the method has aborted the call, whatever it did since."""
        if self._is_aborted:
            self.end()

    def end(self) -> None:
        """Raise RpcFailed unless the call is to succeed."""
        failure = self.failure()
        if failure is not None:
            raise failure

    def failure(self) -> RpcFailed | None:
        """Return what the method has set; None if the call is to succeed."""
        code = None if self._code is None else _code_of(self._code)
        return None if code is None else RpcFailed(code, self._details)

    async def receive(self) -> bytes | None:
        """Receive a message; None at the end of the caller's side."""
        self.check()
        async with self._reading:
            return await self._call.next()

    async def send(self, message: Any) -> None:
        """Send a message."""
        self.check()
        raw = self._method.encode(message)
        async with self._writing:
            await self._call.send(raw)

    async def greet(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Send the headers of the response."""
        self.check()
        if self._call.is_greeted:
            raise RuntimeError("initial metadata can be sent once, and ahead of all messages")
        await self._call.greet(_encoded(metadata))

    def give_up(self, code: Any, details: str, trailing_metadata: Sequence[Any]) -> NoReturn:
        """End the call. What was set before counts where nothing is given."""
        self.check()
        if _code_of(code) is None:
            raise ValueError("abort needs a code other than OK")
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._code, self._details = code, details or self._details
        self._is_aborted = True
        self.check()
        raise AssertionError("the call has ended")


@final
class _AsyncContext(_Context):
    """The context of a coroutine, or of an asynchronous generator."""

    async def read(self) -> Any:
        raw = await self.receive()
        if raw is not None:
            return self._method.decode(raw)
        # Generated code has imported it already.
        from grpc import aio  # type: ignore[import-untyped]  # noqa: PLC0415

        return aio.EOF

    async def write(self, message: Any) -> None:
        await self.send(message)

    async def send_initial_metadata(
        self, initial_metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        await self.greet(initial_metadata)

    async def abort(
        self, code: Any, details: str = "", trailing_metadata: Sequence[Any] = ()
    ) -> NoReturn:
        self.give_up(code, details, trailing_metadata)

    async def abort_with_status(self, status: Any) -> NoReturn:
        self.give_up(status.code, status.details, status.trailing_metadata or ())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        assert self._task is not None
        self._task.add_done_callback(lambda _: callback(self))

    async def next_request(self) -> Any:
        """Receive a request. Raises: StopAsyncIteration: there are no more."""
        raw = await self.receive()
        if raw is None:
            raise StopAsyncIteration
        return self._method.decode(raw)


@final
class _ThreadContext(_Context):
    """The context of a method that runs in a thread."""

    def __init__(self, method: _Method, call: ServedCall, metadata: Metadata) -> None:
        super().__init__(method, call, metadata)
        self._loop = asyncio.get_running_loop()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop, and wait for it. A call that ends wakes it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def requests(self) -> Iterator[Any]:
        """Receive all requests."""
        while (raw := self.wait(self.receive())) is not None:
            yield self._method.decode(raw)

    def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self.wait(self.greet(initial_metadata))

    def abort(
        self, code: Any, details: str = "", trailing_metadata: Sequence[Any] = ()
    ) -> NoReturn:
        self.give_up(code, details, trailing_metadata)

    def abort_with_status(self, status: Any) -> NoReturn:
        self.give_up(status.code, status.details, status.trailing_metadata or ())

    def add_callback(self, callback: Callable[[], None]) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.add_done_callback, lambda _: callback())


@final
class _Requests:
    """The requests of a call, for ``async for``."""

    def __init__(self, context: _AsyncContext) -> None:
        self._context = context

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        return await self._context.next_request()


def _code_of(code: Any) -> Code | None:
    """Return our name of a code of gRPC; None: OK. Raises: ValueError: not a code."""
    name: str = getattr(code, "name", "")
    if name == "OK":
        return None
    if name not in Code.__members__:
        raise ValueError(f"expected a grpc.StatusCode, got {code!r}")
    return Code[name]


def _decoded(metadata: Metadata) -> Iterator[_Datum]:
    for key, value in metadata.items():
        if key.endswith(_BINARY):
            for part in value.split(","):
                with suppress(ValueError):  # what is not base64 is not metadata
                    yield _Datum(key, b64decode(part + "=" * (-len(part) % 4)))
        else:
            yield _Datum(key, value)


def _encoded(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Raises: ValueError: gRPC does not allow it, or it is more than clients take."""
    found: dict[str, str] = {}
    for name, value in metadata:
        if not _NAME.fullmatch(name) or name in _OURS:
            raise ValueError(f"metadata cannot be called {name!r}")
        raw = value.encode() if isinstance(value, str) else value
        if name.endswith(_BINARY):
            text = b64encode(raw).decode().rstrip("=")
        else:
            text = raw.decode(errors="replace")
        if not _TEXT.fullmatch(text):
            raise ValueError(f"metadata {name!r} is not printable ASCII; add -bin to its name")
        # gRPC takes values of one name that are joined by commas for several.
        found[name] = f"{found[name]},{text}" if name in found else text
    if sum(len(name) + len(text) + 32 for name, text in found.items()) > _METADATA_BYTES_MAX:
        raise ValueError(f"metadata is larger than {_METADATA_BYTES_MAX} bytes; clients refuse it")
    return found
