"""Ports that cannot be had are explained."""

from __future__ import annotations

import socket
from unittest import mock

import pytest

from gazette_platform.broker.metrics import BrokerMetrics
from gazette_platform.broker.wire.grpc_server import GrpcServer
from gazette_platform.errors import SetupError


def refusal(host, port=0, **options):
    service, calls = mock.Mock(), BrokerMetrics().calls
    with pytest.raises(SetupError) as caught:
        GrpcServer(service, host=host, port=port, recv_bytes_max=1 << 20, calls=calls, **options)
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
