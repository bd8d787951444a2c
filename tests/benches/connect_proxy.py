"""An HTTP proxy that passes connections on, or does what proxies do instead."""

from __future__ import annotations

import asyncio
import contextlib


class ConnectProxy:
    """Passes every connection on to one server, whatever was asked for.

    Args:
        answer: what it says to CONNECT; None: nothing, ever.
        secret: credentials that it asks for; empty: none.
        speaks_first: whether it says what the server says first along with its own answer.
    """

    def __init__(self, host="127.0.0.1", port=0, *, answer="200 OK", secret="", speaks_first=False):
        self.upstream = host, port
        self.answer, self.secret, self.speaks_first = answer, secret, speaks_first
        self.asked = []
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.meet, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc_info):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def meet(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        writers = [writer]
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.asked.append(head[0])
            if self.answer is None:
                await asyncio.Event().wait()
            elif self.secret and f"Proxy-Authorization: Basic {self.secret}" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            elif not self.answer.startswith("200"):
                writer.write(f"HTTP/1.1 {self.answer}\r\nContent-Length: 0\r\n\r\n".encode())
            else:
                there = await asyncio.open_connection(*self.upstream)
                writers.append(there[1])
                first = await there[0].read(1 << 16) if self.speaks_first else b""
                writer.write(f"HTTP/1.1 {self.answer}\r\nVia: test\r\n\r\n".encode() + first)
                await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for each in writers:
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()


async def pass_on(reader, writer):
    """Pass on all that comes."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
