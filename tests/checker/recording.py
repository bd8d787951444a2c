"""A client whose appends and reads are recorded as operations of a history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from gazette_platform.errors import GazetteError, OutcomeUnknown, StatusError, ValidationError
from gazette_platform.testing.waiting import turns
from tests.checker.history import Payload, payload_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterator

    from gazette_platform.client import AppendTicket, AppendWriter, AsyncClient
    from gazette_platform.client.read.reader import Reader
    from gazette_platform.client.results import AppendResult
    from gazette_platform.protocol import LabelSelector, LabelSet
    from tests.checker.history import Recorder

__all__ = ["RecordedReader", "RecordingClient", "RecordingWriter"]


@final
class RecordingClient:
    """Appends and reads through a client, and notes in a `Recorder` what was asked and answered.

    Args:
        client: who calls; it may retry, which is counted.
        recorder: of the process's history.
        process: name of this client in the history; it should have one append at a time on a
            journal, as the order of its own appends is checked.
    """

    def __init__(self, client: AsyncClient, recorder: Recorder, process: str) -> None:
        self._client = client
        self._recorder = recorder
        self._process = process

    async def append(
        self,
        journal: str,
        content: bytes | Payload,
        *,
        offset: int = 0,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        paced_by: Callable[[bytes], AsyncIterable[bytes]] | None = None,
    ) -> AppendResult:
        """As `AsyncClient.append`, recorded; generates the bytes of a `Payload`.

        Args:
            paced_by: makes a stream of the content, which is sent at its pace and once only.

        Raises: as `AsyncClient.append`. Cancellation: is recorded as an unknown outcome.
        """
        recorder = self._recorder
        data = (
            payload_bytes(recorder.seed, content)
            if isinstance(content, Payload)
            else bytes(content)
        )
        counted = _Counted(data)
        op = recorder.invoke_append(
            self._process,
            journal,
            content,
            offset=offset,
            check=check_registers,
            union=union_registers,
            subtract=subtract_registers,
        )
        try:
            result = await self._client.append(
                journal,
                counted if paced_by is None else paced_by(data),
                offset=offset,
                check_registers=check_registers,
                union_registers=union_registers,
                subtract_registers=subtract_registers,
            )
        except OutcomeUnknown as err:
            # The last attempt was refused, but one before it may have been applied.
            recorder.unknown(op, _brief(err), attempts=counted.attempts - 1)
            raise
        except (StatusError, ValidationError) as err:
            recorder.fail(op, _brief(err))
            raise
        except BaseException as err:
            recorder.unknown(op, _brief(err), attempts=max(1, counted.attempts))
            raise
        recorder.ok_append(
            op,
            begin=result.begin,
            end=result.end,
            sha1=result.sha1 if data else b"",
            registers=result.registers,
            attempts=max(1, counted.attempts),
        )
        return result

    def read(
        self,
        journal: str,
        offset: int = 0,
        *,
        block: bool = False,
        end_offset: int = 0,
        direct: bool = False,
    ) -> RecordedReader:
        """As `AsyncClient.read`, each piece recorded as one poll.

        It reads on after content that is gone: whether that may be so is for the checker to say.
        """
        reader = self._client.read(
            journal,
            offset,
            block=block,
            end_offset=end_offset,
            direct=direct,
            on_jump="continue",
        )
        return RecordedReader(
            reader, self._recorder, self._process, asks_for_head=not (block or end_offset)
        )


@final
class RecordingWriter:
    """An `AppendWriter` whose every write is recorded as an append.

    Attributes:
        journal: its name.
        written: how many writes there were.
        failed: which of them failed.
        unresolved: how many of their tickets are not resolved.
        acknowledged: the greatest end.
    """

    def __init__(self, writer: AppendWriter, recorder: Recorder, process: str) -> None:
        self.journal = writer.journal
        self.written = self.failed = self.unresolved = self.acknowledged = 0
        self._writer = writer
        self._recorder = recorder
        self._process = process

    async def write(self, payload: Payload) -> AppendTicket:
        """As `AppendWriter.write`. Cancellation: is recorded as an unknown outcome."""
        recorder = self._recorder
        op = recorder.invoke_append(self._process, self.journal, payload)
        try:
            ticket = await self._writer.write(payload_bytes(recorder.seed, payload))
        except (StatusError, ValidationError) as err:
            recorder.fail(op, _brief(err))  # an earlier one failed: this one was not accepted
            raise
        except BaseException as err:
            recorder.unknown(op, _brief(err))
            raise
        self.written += 1
        self.unresolved += 1
        ticket.add_done_callback(lambda: self._resolved(op, ticket))
        return ticket

    async def close(self) -> None:
        """As `AppendWriter.close`; then `unresolved` says what it left behind."""
        try:
            await self._writer.close()
        finally:
            await turns()  # callbacks report what was just resolved

    def _resolved(self, op: int, ticket: AppendTicket) -> None:
        self.unresolved -= 1
        try:
            begin, end = ticket.span()
        except Exception as err:  # noqa: BLE001  whatever it was, the write may have been applied
            self.failed += 1
            if ticket.attempts:
                self._recorder.unknown(op, _brief(err), attempts=ticket.attempts)
            else:
                self._recorder.fail(op, _brief(err))  # not sent, or refused
        else:
            self.acknowledged = max(self.acknowledged, end)
            self._recorder.ok_append(op, begin=begin, end=end, attempts=ticket.attempts)


@final
class RecordedReader:
    """A `Reader` whose pieces are recorded; an async iterator of bytes.

    Attributes:
        reader: the one that it wraps.

    Args:
        asks_for_head: it ends at the write head, so it gets one before it ends.
    """

    def __init__(
        self, reader: Reader, recorder: Recorder, process: str, *, asks_for_head: bool
    ) -> None:
        self.reader = reader
        self._asks_for_head = asks_for_head
        self._recorder = recorder
        self._process = process
        self._stream = recorder.stream()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next content. Cancellation: safe; the poll is recorded as having got nothing."""
        recorder, reader = self._recorder, self.reader
        op = recorder.invoke_poll(
            self._process, reader.journal, stream=self._stream, offset=reader.offset
        )
        try:
            piece = bytes(await anext(reader))
        except StopAsyncIteration:
            recorder.ok_poll(op, write_head=self._told)
            raise
        except BaseException as err:
            recorder.fail(op, _brief(err))
            raise
        recorder.ok_poll(op, (reader.offset - len(piece), piece), write_head=self._told)
        return piece

    @property
    def _told(self) -> int:
        """The write head that the reader got; -1 if it may have ended before it got one."""
        return self.reader.write_head or (0 if self._asks_for_head else -1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.reader.aclose()


class _Counted:
    """Content that counts how often it was sent: clients iterate it once for each attempt."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.attempts = 0

    def __iter__(self) -> Iterator[bytes]:
        self.attempts += 1
        return iter((self._data,) if self._data else ())


def _brief(err: BaseException) -> str:
    text = str(err) if isinstance(err, GazetteError) else repr(err)
    return f"{type(err).__name__}: {text}"[:300]
