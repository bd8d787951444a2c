"""A service with calls of all kinds: stub and servicer as the generator writes them, and servicers of each style.

Messages are `StringValue`s.
"""

# ruff: noqa: N802  methods are called as in the service

from __future__ import annotations

import asyncio
import threading

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from grpc import aio

SERVICE = "test.Words"
KINDS = {
    "Say": "unary_unary",
    "Split": "unary_stream",
    "Join": "stream_unary",
    "Chat": "stream_stream",
}


class WordsStub:
    def __init__(self, channel):
        for name, kind in KINDS.items():
            call = getattr(channel, kind)(
                f"/{SERVICE}/{name}",
                request_serializer=StringValue.SerializeToString,
                response_deserializer=StringValue.FromString,
            )
            setattr(self, name, call)


class WordsServicer:
    """What the generator writes for methods that the servicer leaves out."""

    def Say(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        context.set_details("Method not implemented!")
        raise NotImplementedError("Method not implemented!")

    Split = Join = Chat = Say


def add_former_words(servicer, server):
    """As generated code was before grpcio-tools 1.65."""
    handlers = _handlers(servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def add_words(servicer, server):
    """As generated code is."""
    handlers = _handlers(servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


def _handlers(servicer):
    return {
        name: getattr(grpc, f"{kind}_rpc_method_handler")(
            getattr(servicer, name),
            request_deserializer=StringValue.FromString,
            response_serializer=StringValue.SerializeToString,
        )
        for name, kind in KINDS.items()
    }


class Words(WordsServicer):
    """Coroutines and asynchronous generators."""

    async def Say(self, request, context):
        return StringValue(value=request.value.upper())

    async def Split(self, request, context):
        for word in request.value.split():
            yield StringValue(value=word)

    async def Join(self, requests, context):
        return StringValue(value=" ".join([request.value async for request in requests]))

    async def Chat(self, requests, context):
        async for request in requests:
            yield StringValue(value=request.value[::-1])


class WordsByContext(Words):
    """Coroutines that read and write by their context."""

    async def Split(self, request, context):
        for word in request.value.split():
            await context.write(StringValue(value=word))

    async def Join(self, requests, context):
        words = []
        while (request := await context.read()) is not aio.EOF:
            words.append(request.value)
        return StringValue(value=" ".join(words))

    async def Chat(self, requests, context):
        while (request := await context.read()) is not aio.EOF:
            await context.write(StringValue(value=request.value[::-1]))


class WordsInThreads(WordsServicer):
    """Functions and generators, which must not run on the event loop."""

    def Say(self, request, context):
        expect_thread()
        return StringValue(value=request.value.upper())

    def Split(self, request, context):
        expect_thread()
        for word in request.value.split():
            yield StringValue(value=word)

    def Join(self, requests, context):
        expect_thread()
        return StringValue(value=" ".join(request.value for request in requests))

    def Chat(self, requests, context):
        expect_thread()
        for request in requests:
            yield StringValue(value=request.value[::-1])


def expect_thread():
    assert threading.current_thread() is not threading.main_thread()


class Saying(WordsServicer):
    """`Say` of a test, and what it leaves behind."""

    def __init__(self, say):
        self._say = say
        self.left = asyncio.Event()
        self.begun = asyncio.Event()
        self.notes = []

    async def Say(self, request, context):
        return await self._say(self, request, context)
