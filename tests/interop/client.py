"""A client of the gRPC library for Python, and one of our own channel: ``python client.py LIBRARY OPTIONS WORD``."""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import random
import sys
from pathlib import Path

import grpc
from grpc import aio

from gazette_platform.serving.auth import TlsMaterial, http2_client_context
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import PEER_LIMITS
from gazette_platform.serving.interface import DROPPED, Kind, RpcFailed
from gazette_platform.testing.waiting import pass_time, patient

LARGE = 5 << 20
LIMIT_S = patient(60)
OPTIONS = [("grpc.max_receive_message_length", -1)]


class Failed(Exception):
    """A call ended by an error."""

    def __init__(self, code, text):
        self.code, self.text = code, text
        super().__init__(f"{code}: {text}")


def failed(err):
    return Failed(err.code().name, err.details())


class Aio:
    """Calls of `grpc.aio`."""

    def __init__(self, target, ca=b"", pair=(None, None)):
        if ca:
            credentials = grpc.ssl_channel_credentials(ca, *pair)
            self.channel = aio.secure_channel(target, credentials, options=OPTIONS)
        else:
            self.channel = aio.insecure_channel(target, options=OPTIONS)

    async def unary(self, name, request, *, timeout_s=LIMIT_S, is_compressed=False):
        how = grpc.Compression.Gzip if is_compressed else None
        try:
            return await self.channel.unary_unary(path(name))(
                request, timeout=timeout_s, compression=how
            )
        except aio.AioRpcError as err:
            raise failed(err) from err

    async def upload(self, name, messages):
        call = self.channel.stream_unary(path(name))
        return await call(iter(messages), timeout=LIMIT_S)

    async def download(self, name, request):
        call = self.channel.unary_stream(path(name))(request, timeout=LIMIT_S)
        return [answer async for answer in call]

    async def both(self, parts, metadata=()):
        call = self.channel.stream_stream(path("Both"))(timeout=LIMIT_S, metadata=metadata)
        greeting, answers = dict(await call.initial_metadata()), []
        for part in parts:
            await call.write(part)
            answers.append(await call.read())
        await call.done_writing()
        assert await call.read() is aio.EOF
        return answers, greeting

    async def close(self):
        await self.channel.close()


class Sync:
    """Calls of `grpc`, each in a thread."""

    def __init__(self, target, ca=b"", pair=(None, None)):
        if ca:
            credentials = grpc.ssl_channel_credentials(ca, *pair)
            self.channel = grpc.secure_channel(target, credentials, options=OPTIONS)
        else:
            self.channel = grpc.insecure_channel(target, options=OPTIONS)

    async def unary(self, name, request, *, timeout_s=LIMIT_S, is_compressed=False):
        how = grpc.Compression.Gzip if is_compressed else None
        call = self.channel.unary_unary(path(name)).future(
            request, timeout=timeout_s, compression=how
        )
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        try:
            await done.wait()
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.exception() is not None:
            raise failed(call)
        return call.result()

    async def upload(self, name, messages):
        call = self.channel.stream_unary(path(name))
        return await asyncio.to_thread(call, iter(messages), timeout=LIMIT_S)

    async def download(self, name, request):
        call = self.channel.unary_stream(path(name))
        return await asyncio.to_thread(lambda: list(call(request, timeout=LIMIT_S)))

    async def both(self, parts, metadata=()):
        return await asyncio.to_thread(self._both, parts, metadata)

    def _both(self, parts, metadata):
        requests = queue.SimpleQueue()
        call = self.channel.stream_stream(path("Both"))(
            iter(requests.get, None), timeout=LIMIT_S, metadata=metadata
        )
        greeting, answers = dict(call.initial_metadata()), []
        for part in parts:
            requests.put(part)
            answers.append(next(call))
        requests.put(None)
        assert list(call) == []
        return answers, greeting

    async def close(self):
        self.channel.close()


class Ours:
    """Calls of our channel."""

    def __init__(self, target, ca=b"", pair=(None, None)):
        key, cert = (raw or b"" for raw in pair)
        tls = http2_client_context(TlsMaterial(cert, key, ca)) if ca else None
        dialing = Dialing(limits=PEER_LIMITS, message_bytes_max=1 << 30)
        self.channel = Channel(target, dialing, tls)

    async def unary(self, name, request, *, timeout_s=LIMIT_S, is_compressed=False):
        assert not is_compressed
        call = self.channel.call(path(name), Kind.UNARY, request=request, timeout_s=timeout_s)
        try:
            return await call.answer()
        except RpcFailed as err:
            raise Failed(err.code.value, err.text) from err

    async def upload(self, name, messages):
        call = self.channel.call(path(name), Kind.CLIENT_STREAM, timeout_s=LIMIT_S)
        try:
            for message in messages:
                await call.send(message)
            await call.done_sending()
        except RpcFailed:
            pass  # it was answered before
        return await call.answer()

    async def download(self, name, request):
        call = self.channel.call(path(name), Kind.SERVER_STREAM, (), request, timeout_s=LIMIT_S)
        answers = []
        while (answer := await call.next()) is not None:
            answers.append(answer)
        return answers

    async def both(self, parts, metadata=()):
        call = self.channel.call(path("Both"), Kind.BIDI_STREAM, metadata, timeout_s=LIMIT_S)
        greeting, answers = dict(await call.greeting()), []
        for part in parts:
            await call.send(part)
            answers.append(await call.next())
        await call.done_sending()
        assert await call.next() is None
        return answers, greeting

    async def close(self):
        await self.channel.close()


LIBRARIES = {"aio": Aio, "sync": Sync, "ours": Ours}


def path(name):
    return f"/test.Echo/{name}"


async def counts(calls):
    return [int(word) for word in (await calls.unary("Counts", b"")).split()]


async def until_more(calls, which, before):
    async with asyncio.timeout(LIMIT_S):
        while (await counts(calls))[which] <= before[which]:
            await pass_time(0.01)


async def fails(work, code):
    found = None
    try:
        await work
    except Failed as err:
        found = err
    assert found is not None, f"it did not fail with {code}"
    assert found.code == code, found
    return found.text


# ---------------------------------------------------------------------------------------- checks
NOISE = random.Random(1).randbytes(LARGE)


async def unary(calls):
    for size in (0, 3, 16_380, 65_536, LARGE):
        assert await calls.unary("Unary", NOISE[:size]) == NOISE[:size], size


async def upload(calls):
    for sizes in ([1, 0, 2], [LARGE] * 3):
        answer = await calls.upload("Upload", [bytes(size) for size in sizes])
        assert answer == b"%d messages, %d bytes" % (len(sizes), sum(sizes)), answer


async def download(calls):
    for count, size in ((0, 0), (1000, 100), (3, LARGE)):
        found = await calls.download("Download", b"%d %d" % (count, size))
        assert found == [bytes((n % 256,)) * size for n in range(count)], (count, size)


async def both(calls):
    parts = [b"abc", b"", NOISE]
    answers, _ = await calls.both(parts)
    assert answers == [part[::-1] for part in parts]


async def compressed(calls):
    assert await calls.unary("Unary", bytes(100_000), is_compressed=True) == bytes(100_000)


async def metadata(calls):
    _, greeting = await calls.both([], (("x-sent", "Bearer a, b"),))
    found = greeting["greeting"], greeting["seen"]
    assert found == ("hello", "Bearer a, b"), found


async def deadline(calls):
    before = await counts(calls)
    await fails(calls.unary("Wait", b"", timeout_s=1.0), "DEADLINE_EXCEEDED")
    await until_more(calls, 1, before)


async def cancel(calls):
    before = await counts(calls)
    waiting = asyncio.ensure_future(calls.unary("Wait", b""))  # noqa: TID251
    await until_more(calls, 0, before)
    waiting.cancel()
    await until_more(calls, 1, before)


async def error(calls):
    text = await fails(calls.unary("Fail", b"NOT_FOUND"), "NOT_FOUND")
    assert text == "why: 100 % of ü", text


async def missing(calls):
    await fails(calls.unary("Missing", b""), "UNIMPLEMENTED")


async def too_large(calls):
    await fails(calls.unary("Unary", bytes((8 << 20) + 1)), "RESOURCE_EXHAUSTED")


async def early(calls):
    answer = await calls.upload("Early", [bytes(100_000)] * 100)
    assert answer == b"early", answer


async def many(calls):
    for begin in range(0, 1000, 100):  # the server of grpc-core drops calls if more wait
        requests = [b"%d" % n for n in range(begin, begin + 100)]
        answers = await asyncio.gather(*(calls.unary("Unary", each) for each in requests))
        assert answers == requests


CHECKS = (unary, upload, download, both, compressed, metadata, deadline, cancel)
CHECKS += (error, missing, too_large, early, many)


async def drain(calls):
    """Call without a pause while the server leaves, and another takes its place."""
    first = await calls.unary("Name", b"")
    waiting = asyncio.ensure_future(calls.unary("Wait", b""))  # noqa: TID251
    await until_more(calls, 0, [0, 0])
    say({"event": "waiting"})
    has_moved = False
    while not waiting.done():
        name = await name_of(calls)
        if not has_moved and name != first:
            has_moved = True
            say({"event": "moved"})
    assert await waiting == b"waited"
    assert has_moved


async def name_of(calls):
    """Ask for the server's name, again if it dropped the call: grpc.aio's does so, when it stops."""
    while True:
        try:
            return await calls.unary("Name", b"")
        except Failed as err:
            if DROPPED not in str(err):
                raise


def say(line):
    print(json.dumps(line), flush=True)


async def report(check, calls):
    problem = ""
    try:
        async with asyncio.timeout(LIMIT_S):
            await check(calls)
    except Exception as err:  # noqa: BLE001  whatever it is, the line has it
        problem = repr(err)[:2000]
    say({"check": check.__name__.replace("_", "-"), "problem": problem})


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    for name in ("-address", "-ca", "-cert", "-key"):
        parser.add_argument(name, default="")
    parser.add_argument("word", choices=("checks", "drain"))
    given = parser.parse_args()
    given.ca, given.cert, given.key = (
        Path(name).read_bytes() if name else b"" for name in (given.ca, given.cert, given.key)
    )
    return given


async def main(given):
    pair = (given.key, given.cert) if given.key else (None, None)
    calls = LIBRARIES[given.library](given.address, given.ca, pair)
    checks = CHECKS if given.word == "checks" else (drain,)
    if isinstance(calls, Ours):
        checks = [check for check in checks if check is not compressed]  # it sends none
    try:
        for check in checks:
            await report(check, calls)
    finally:
        await calls.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parsed())))
