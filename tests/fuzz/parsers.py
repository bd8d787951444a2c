"""Parsers that take what people and programs write, run on one text each, without a server.

Only errors of the `GazetteError` family may come out, within `LIMIT_S` of CPU and `MEMORY_BYTES_MAX`.
The parsers run in a process of their own, which is killed if it takes much longer. A thread could not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import struct
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import orjson

from gazette_platform.broker.api.gateway_messages import ReadQuery, journal_of
from gazette_platform.codecs import decompressor
from gazette_platform.errors import GazetteError
from gazette_platform.keyspace.keys import parse_key
from gazette_platform.keyspace.state import decode_journal_spec, decode_route
from gazette_platform.lake.spec.layout import Layout
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.message import CsvFraming, JsonFraming, ProtoFraming, parse_uuid, split_fixed
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    JournalSpec,
    LabelSelector,
    LabelSet,
    parse_duration,
    parse_fragment_path,
)
from gazette_platform.protocol.auth import Claims, KeyRing
from gazette_platform.protocol.content import (
    decode_append_content,
    decode_read_content,
    decode_replicate_content,
)
from gazette_platform.protocol.path_postfix import PathPostfixTemplate
from gazette_platform.protocol.specs import parse_store_url
from gazette_platform.stores import open_store
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIMIT_S", "PARSERS", "ParserProcess", "run_parser"]

LIMIT_S = 1.0
"""CPU seconds for one text: the event loop of a broker would stand still for as long."""

MEMORY_BYTES_MAX = 1 << 30
"""By how much the process may grow."""
# Wall time for a process that the first text starts, on a machine that has other things to do.
_GIVE_UP_S = 30.0
_HEAD = struct.Struct(">I")

_OUTPUT_BYTES_MAX = 64 << 20


def _template(text: str) -> None:
    template = PathPostfixTemplate(text)
    registers = LabelSet.of(("aa", "1"), ("bb", "\u20ac"))
    for begin, end in ((0, 0), (0, 1), ((1 << 62), (1 << 63) - 1)):
        fragment = Fragment("fuzz/a", begin, end, codec=CompressionCodec.GZIP)
        template.evaluate(
            fragment, datetime(2020, 2, 29, 1, 2, 3, 4, UTC), registers, JournalSpec("fuzz/a")
        )


def _claims(text: str) -> None:
    payload = orjson.loads(text)
    if isinstance(payload, dict):
        Claims.from_payload(payload).match(LabelSet.of(("name", "fuzz/a")))


def _content(raw: bytes) -> None:
    decode_append_content(raw)
    decode_read_content(raw)
    decode_replicate_content(raw)


def _decompress(codec: CompressionCodec) -> Callable[[bytes], None]:
    def run(raw: bytes) -> None:
        stream, total, data = decompressor(codec), 0, raw
        while True:
            piece = stream.decompress(data, 1 << 20)
            total, data = total + len(piece), b""
            if stream.needs_input or total > _OUTPUT_BYTES_MAX:
                break
        assert total <= _OUTPUT_BYTES_MAX + (8 << 20), f"{total} bytes at once"
        if total <= _OUTPUT_BYTES_MAX:
            stream.finish()

    return run


def _framing(raw: bytes) -> None:
    split_fixed(raw)
    split_fixed(raw, has_headers=True)


def _messages(framing: Any) -> Callable[[bytes], None]:
    def run(raw: bytes) -> None:
        decoder, refused = framing.decoder(), 0
        for at in range(0, len(raw), 64):
            for frame in decoder.feed(raw[at : at + 64]):
                try:
                    framing.uuid_of(decoder.decode(frame))
                except GazetteError:
                    refused += 1
        decoder.end()
        assert refused <= len(raw)

    return run


def _store(text: str) -> None:
    parse_store_url(text)
    open_store(text, file_root=Path("/nonexistent"), file_only=False)


_TEXT: dict[str, Callable[[str], Any]] = {
    "template": _template,
    "selector": lambda text: LabelSelector.parse(text).matches(LabelSet.of(("name", "fuzz/a"))),
    "tree": parse_journal_tree,
    "duration": parse_duration,
    "fragment": lambda text: parse_fragment_path("fuzz/a", text),
    "claims": _claims,
    "keys": KeyRing,
    "table": parse_table_spec,
    "store": _store,
    "key": lambda text: parse_key("/p", "/p" + text),
    "query": lambda text: ReadQuery.parse([("offset", text), ("block", text[:4])]),
    "path": journal_of,
    "layout": Layout.parse,
    "uuid": parse_uuid,
    "token": lambda text: KeyRing("c2VjcmV0").verify(text),
}
_BYTES: dict[str, Callable[[bytes], Any]] = {
    "content": _content,
    "framing": _framing,
    "json_messages": _messages(JsonFraming()),
    "csv_messages": _messages(CsvFraming()),
    "proto_messages": _messages(ProtoFraming()),
    "spec": lambda raw: decode_journal_spec(raw, name="fuzz/a"),
    "route": decode_route,
    **{
        codec.name.lower(): _decompress(codec)
        for codec in CompressionCodec
        if codec.value in (2, 3, 4)
    },
}
PARSERS = (*_TEXT, *_BYTES)
"""Names of the targets."""

# Whoever reads claims parses the JSON first, and refuses what is not JSON there.
_REFUSALS = (GazetteError, orjson.JSONDecodeError)


def run_parser(target: str, raw: bytes) -> tuple[str, str]:
    """Run a parser. Returns: ``ok``, ``refused``, ``slow`` or ``broken``, and why."""
    began = time.thread_time()
    try:
        if target in _BYTES:
            _BYTES[target](raw)
        else:
            _TEXT[target](
                raw.decode(errors="surrogateescape" if target in {"path", "key"} else "replace")
            )
        code, text = "ok", ""
    except _REFUSALS as err:
        code, text = "refused", str(err)[:2000]
    except MemoryError:
        code, text = "broken", "it took too much memory"
    except Exception as err:  # noqa: BLE001  that is the finding
        where = traceback.format_tb(err.__traceback__)[-1].strip()
        code, text = "broken", f"{type(err).__name__}: {str(err)[:300]} ({where})"
    took_s = time.thread_time() - began
    if took_s > LIMIT_S:
        return "slow", f"{took_s:.1f} s of CPU"
    return code, text


@final
class ParserProcess:
    """Runs parsers in a process that may be killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def run(self, target: str, raw: bytes) -> tuple[str, str]:
        """As `run_parser`. Starts the process if it is not running."""
        async with self._lock:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    __spec__.name,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            request = pickle.dumps((target, raw))
            try:
                async with asyncio.timeout(_GIVE_UP_S):
                    stdin.write(_HEAD.pack(len(request)) + request)
                    await stdin.drain()
                    answer = await stdout.readexactly(*_HEAD.unpack(await stdout.readexactly(4)))
            except TimeoutError:
                await self.close()
                return "slow", f"no end within {_GIVE_UP_S} s"
            except (asyncio.IncompleteReadError, OSError):
                code = await self._process.wait()
                await self.close()
                return "broken", f"the process ended with {code}"
            found: tuple[str, str] = pickle.loads(answer)
            return found

    async def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _serve() -> None:
    """Answer requests on stdin until it closes."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES_MAX,) * 2)
    while head := sys.stdin.buffer.read(4):
        target, raw = pickle.loads(sys.stdin.buffer.read(*_HEAD.unpack(head)))
        answer = pickle.dumps(run_parser(target, raw))
        sys.stdout.buffer.write(_HEAD.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
