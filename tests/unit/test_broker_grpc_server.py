"""Ports that cannot be had are explained; callers that have gone are not errors."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from grpc import aio
from grpc._cython import cygrpc

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.errors import SetupError
from gazette_platform.serving.grpc_transport import GrpcServer, _handled, _Stream
from gazette_platform.serving.interface import Code, RpcFailed


def refusal(host, port=0, **options):
    calls = BrokerMetrics().calls
    with pytest.raises(SetupError) as caught:
        GrpcServer((), host=host, port=port, recv_bytes_max=1 << 20, calls=calls, **options)
    return str(caught.value)


async def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = refusal("127.0.0.1", port)
    assert text.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "another port with --broker.port" in text


async def test_an_address_of_another_machine():
    text = refusal("192.0.2.1")  # of no machine: RFC 5737
    assert "Cannot assign requested address (--broker.host must be an address of" in text
    assert "--broker.advertise" in text


async def test_a_host_without_address():
    text = refusal("nowhere.invalid")
    assert text.startswith("cannot listen on nowhere.invalid:0: ")
    assert "--broker.host" in text
    assert "in use" not in text


async def test_a_socket_in_a_folder_that_is_not_there(tmp_path):
    text = refusal("127.0.0.1", socket=tmp_path / "none" / "socket")
    assert "its folder" in text
    assert "--broker.port" in text


class Gone:
    """The context of a call whose caller is not there any more."""

    def __init__(self, error):
        self.error = error

    async def read(self):
        raise self.error

    async def write(self, _raw):
        raise self.error

    async def abort(self, _code, _text):
        raise self.error


ERRORS = [cygrpc.ExecuteBatchError("failed"), aio.UsageError("RPC already finished.")]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("operation", ["next", "send"])
async def test_a_caller_that_has_gone_cancels_its_call(error, operation):
    metrics = BrokerMetrics().calls.of("bidi_stream", "protocol.Journal", "Replicate")

    async def handle(_, context):
        stream = _Stream(context, metrics)
        await (stream.next() if operation == "next" else stream.send(b""))

    with pytest.raises(RpcFailed) as caught:
        await handle(None, Gone(error))
    assert caught.value.code is Code.CANCELLED
    # gRPC takes that for what it is, and logs no error of ours.
    with pytest.raises(asyncio.CancelledError):
        await _handled(handle, metrics)(None, Gone(error))


async def test_an_error_ends_its_call_once():
    metrics = BrokerMetrics().calls.of("unary", "protocol.Journal", "Apply")

    async def handle(_request, _context):
        raise RpcFailed(Code.UNKNOWN, "why")

    aborted = Gone(aio.AbortError("Locally aborted."))
    with pytest.raises(aio.AbortError):
        await _handled(handle, metrics)(None, aborted)


@pytest.mark.parametrize(
    "error", [ERRORS[0], UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")]
)
def test_grpc_logs_malformed_calls_and_callers_that_left_in_one_line(caplog, error):
    logging.getLogger("grpc._cython.cygrpc").error("it failed", exc_info=error)
    assert "it failed" in caplog.text
    assert len(caplog.text.splitlines()) == 1
    logging.getLogger("grpc._cython.cygrpc").error("a fault of ours", exc_info=ValueError("x"))
    assert "ValueError: x" in caplog.text
