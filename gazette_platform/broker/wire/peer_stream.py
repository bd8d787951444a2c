"""Replicate streams to peers, in bytes; what they raise is `RpcFailed`, with Gazette's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.broker.wire.forwarder import PeerCall
from gazette_platform.protocol.auth import Capability
from gazette_platform.serving.interface import Code, RpcFailed, go_spelling

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.wire.peers import Peers
    from gazette_platform.protocol import ProcessId

__all__ = ["TENURE", "PeerStream", "open_replicate"]

TENURE: Final = "gazette-platform-tenure"
"""Metadata of Replicate with which brokers of this project report their holding of the journal to each other,
if that survives their process; else it is empty. Those of Gazette neither send it nor look at it."""

_REPLICATE = "/protocol.Journal/Replicate"


class PeerStream(Protocol):
    """A Replicate stream to one peer."""

    async def write(self, raw: bytes) -> None:
        """Send a message. Raises: RpcFailed: the stream broke."""
        ...

    def write_now(self, raw: bytes) -> bool:
        """Send a message without a wait. Returns: whether it was sent; if not, call `write`."""
        ...

    async def read(self) -> bytes | None:
        """The next message; None at the end. Raises: RpcFailed: the stream broke."""
        ...

    def listen(self, take: Callable[[bytes], None]) -> None:
        """Let messages be taken as they come; as `OutgoingCall` has it."""
        ...

    async def tenure(self) -> str | None:
        """The peer's holding of the journal, once a message came; None: it keeps none after a crash.

        Raises: RpcFailed: the stream broke.
        """
        ...

    async def done_writing(self) -> None:
        """Signal the peer that nothing more comes. Raises: RpcFailed: the stream broke."""
        ...

    def cancel(self) -> None:
        """Give the stream up."""
        ...


def open_replicate(
    peers: Peers, journal: str, peer: ProcessId, endpoint: str, tenure: str
) -> PeerStream:
    """Begin a Replicate stream about `journal`; connects by itself.

    Args:
        tenure: our holding of the journal.

    Raises: RpcFailed: the peer's address is unknown.
    """
    if not endpoint:
        raise RpcFailed(Code.UNAVAILABLE, f"broker {str(peer).strip()} has no endpoint in etcd")
    peer_call = PeerCall(peers, endpoint, _REPLICATE, Capability.REPLICATE, journal)
    return _CallStream(peer_call, tenure)


@final
class _CallStream:
    """A stream that is a call to the peer."""

    __slots__ = ("_call", "_peer_call")

    def __init__(self, peer_call: PeerCall, tenure: str) -> None:
        self._peer_call = peer_call
        self._call = peer_call.bidi_stream((TENURE, tenure))

    async def write(self, raw: bytes) -> None:
        try:
            await self._call.send(raw)
        except RpcFailed as err:
            raise self._failed(err) from err

    def write_now(self, raw: bytes) -> bool:
        return self._call.send_now(raw)

    def listen(self, take: Callable[[bytes], None]) -> None:
        self._call.listen(take)

    async def read(self) -> bytes | None:
        try:
            return await self._call.next()
        except RpcFailed as err:
            raise self._failed(err) from err

    async def tenure(self) -> str | None:
        try:
            told = await self._call.greeting()
        except RpcFailed as err:
            raise self._failed(err) from err
        return told.get(TENURE) or None

    async def done_writing(self) -> None:
        try:
            await self._call.done_sending()
        except RpcFailed as err:
            raise self._failed(err) from err

    def cancel(self) -> None:
        self._call.cancel()

    def _failed(self, err: RpcFailed) -> RpcFailed:
        self._peer_call.failed(err)
        text = f"rpc error: code = {go_spelling(err.code.value)} desc = {err.text}"
        return RpcFailed(err.code, text)
