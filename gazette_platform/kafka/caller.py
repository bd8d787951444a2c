"""A small client of Kafka's protocol, for commands: one connection, one call at a time.

Programs that produce and consume use one of the many clients of Kafka.
"""

from __future__ import annotations

import asyncio
import io
import struct
from typing import TYPE_CHECKING, Any, Final, Self, final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from typing_extensions import override

from gazette_platform.errors import SetupError, TransportError
from gazette_platform.kafka.wire import API_VERSIONS, maker, message_class

if TYPE_CHECKING:
    from ssl import SSLContext

_SIZE: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 256 << 20


@final
class Part:
    """An entity inside of a request, whose class depends on the request's version.

    Args:
        kind: its class, such as ``ListOffsetsTopic``.
    """

    def __init__(self, kind: str, /, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields


def _built(name: str, version: int, kind: str, fields: dict[str, Any]) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, Part):
            return _built(name, version, value.kind, value.fields)
        return tuple(map(of, value)) if isinstance(value, tuple) else value

    build = maker(name, version, kind, "request")
    return build({field: of(value) for field, value in fields.items()})


@final
class Caller:
    """A connection to one gateway, or one broker of Kafka. Not for several tasks.

    Args:
        tls: None for a plain connection.
        token: sent as the password of SASL/PLAIN; empty: no login.
        timeout_s: of each call, in seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        token: str = "",
        client_id: str = "gazctl",
        timeout_s: float = 10.0,
    ) -> None:
        self._address = host, port
        self._tls = tls
        self._token = token
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._number = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.versions: dict[int, tuple[int, int]] = {API_VERSIONS: (0, 0)}

    @override
    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    async def __aenter__(self) -> Self:
        """Raises: TransportError: it cannot be reached, or is not Kafka's. SetupError: the login fails."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._reader, self._writer = await asyncio.open_connection(
                    *self._address, ssl=self._tls
                )
        except (OSError, TimeoutError) as err:
            raise TransportError(
                f"{self}: {str(err) or 'no answer'} (is it the address of a Kafka port?)"
            ) from err
        found = await self.ask("api_versions", 0)
        self.versions = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
        if self._token:
            await self._log_in()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _log_in(self) -> None:
        await self.ask("sasl_handshake", 1, mechanism="PLAIN")
        auth = b"\0token\0" + self._token.encode()
        found = await self.ask("sasl_authenticate", 2, auth_bytes=auth)
        if found.error_code is not ErrorCode.none:
            raise SetupError(f"{self}: the login failed: {found.error_message or 'no reason'}")

    def knows(self, name: str) -> bool:
        """Whether it answers a call, such as ``list_transactions``."""
        return int(message_class(name, 0, "request").__api_key__) in self.versions

    async def ask(self, name: str, most: int, **fields: Any) -> Any:
        """Make a call.

        Args:
            name: of the call, such as ``list_groups``.
            most: the largest version that the caller understands; the other side may have a smaller one.
            fields: of the request; those that the version does not have are left out. Entities in it are a `Part`.

        Returns: the answer, as `kio` has it.
        Raises: TransportError: there is none.
        """
        probe = message_class(name, most, "request")
        low, high = self.versions.get(int(probe.__api_key__), (0, -1))
        version = min(most, high)
        if version < low:
            raise TransportError(f"{self}: it has no {name} of a version up to {most}")
        kind = message_class(name, version, "request")
        request = _built(name, version, kind.__name__, fields)
        self._number += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._exchange(kind, request)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as err:
            raise TransportError(f"{self}: {name}: {str(err) or 'no answer'}") from err
        answer = message_class(name, version, "response")
        _, size = entity_reader(answer.__header_schema__)(body, 0)
        found, _ = entity_reader(answer)(body, size)
        return found

    async def _exchange(self, kind: Any, request: Any) -> bytes:
        assert self._reader is not None  # entered
        assert self._writer is not None  # likewise
        header = kind.__header_schema__
        buffer = io.BytesIO()
        head = header(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__,
            correlation_id=self._number,
            client_id=self._client_id,
        )
        entity_writer(header)(buffer, head)
        entity_writer(kind)(buffer, request)
        content = buffer.getvalue()
        self._writer.write(_SIZE.pack(len(content)) + content)
        await self._writer.drain()
        (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise TransportError(f"{self}: an answer of {size} bytes is not Kafka's")
        return await self._reader.readexactly(size)
