"""The cluster that tests share: it notices what a broker met that its test did not bring about."""

from __future__ import annotations

import pytest

from gazette_platform.testing.local import LocalBrokers

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.fixture
def brokers(etcd_server, etcd_prefix, tmp_path):
    return LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix)


async def test_a_broker_that_failed_fails_its_test(brokers):
    await brokers.__aenter__()
    broker = await brokers.start()
    broker.tasks.failure = KeyError("unforeseen")
    with pytest.raises(AssertionError, match="KeyError: 'unforeseen'"):
        await brokers.__aexit__(None)


async def test_an_error_that_was_contained_fails_its_test(brokers):
    await brokers.__aenter__()
    broker = await brokers.start()
    broker.faults.report("journal", "a/journal", ValueError("unforeseen"))
    with pytest.raises(AssertionError, match="ValueError: unforeseen"):
        await brokers.__aexit__(None)


async def test_what_a_test_brings_about_does_not(brokers):
    async with brokers:
        brokers.expect(KeyError)
        broker = await brokers.start()
        broker.tasks.failure = KeyError("unforeseen")
