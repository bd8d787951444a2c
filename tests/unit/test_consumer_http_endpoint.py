"""Where other processes find the pages of a consumer."""

from __future__ import annotations

import pytest

from gazette_platform.app import Application, ConsumerProcess
from gazette_platform.client import ClientConfig
from gazette_platform.consumer.peers import ConsumerPeers
from gazette_platform.consumer.process import ConsumerConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import EtcdHeader, Header, ProcessId, Route
from gazette_platform.serving.interface import NotNow


class Silent(Application):
    def new_store(self, shard, recorder):
        raise AssertionError("the tests never open it")

    def consume(self, txn, envelope):
        raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("settings", "endpoint"),
    [
        ({}, "http://127.0.0.1:8092"),
        ({"http_host": "10.0.0.7"}, "http://10.0.0.7:8092"),
        ({"http_host": "fe80::1"}, "http://[fe80::1]:8092"),
        ({"http_host": "0.0.0.0", "host": "10.0.0.7"}, "http://10.0.0.7:8092"),
        (
            {"http_host": "10.0.0.7", "advertise": "http://pod-1.pods:8090"},
            "http://pod-1.pods:8092",
        ),
    ],
)
async def test_pages_are_where_the_process_is_reached(settings, endpoint):
    process = ConsumerProcess(
        Silent(), ConsumerConfig(id="consumer", etcd_prefix="/silent", **settings)
    )
    process.port, process.http_port = 8090, 8092
    assert process.http_endpoint == endpoint


@pytest.fixture
async def peers():
    found = ConsumerPeers(ClientConfig(), SystemClock())
    yield found
    await found.close()


def header(*endpoints):
    member = ProcessId("local", "consumer")
    return Header(member, Route((member,), 0, endpoints), EtcdHeader(1, 1, 1, 1))


async def test_a_process_without_an_endpoint_has_no_pages(peers):
    with pytest.raises(NotNow, match="shard a: its primary has no endpoint"):
        await peers.page(header(), "a", "/page", {}, timeout_s=5)


async def test_a_process_that_is_away_has_no_pages(peers):
    # Nothing listens on port 1.
    with pytest.raises(NotNow, match=r"shard a: its primary at http://127\.0\.0\.1:1: "):
        await peers.page(header("http://127.0.0.1:1"), "a", "/page", {}, timeout_s=5)
