"""What stores are asked for is counted, and nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry

from gazette_platform.errors import ObjectNotFound, StoreUnavailable
from gazette_platform.protocol import parse_store_url
from gazette_platform.stores import MeasuredStore, StoreMetrics
from gazette_platform.stores.fs import FileStore
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all

URL = "file:///"


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def store(tmp_path, executor, registry):
    driver = FileStore(parse_store_url(URL), file_root=tmp_path, executor=executor)
    return MeasuredStore(driver, StoreMetrics(registry))


class TestMeasuredStoreConformance(StoreConformance):
    served_by = "file://, of the file system"

    @pytest.fixture
    def store(self, tmp_path, executor):
        driver = FileStore(parse_store_url(URL), file_root=tmp_path, executor=executor)
        return MeasuredStore(driver, StoreMetrics(CollectorRegistry()))


def operations(registry, operation, status="success"):
    labels = {"store": URL, "operation": operation, "status": status}
    timed = registry.get_sample_value("gazette_store_operation_duration_seconds_count", labels)
    counted = registry.get_sample_value("gazette_store_operation_total", labels)
    assert timed == counted
    return counted


async def test_operations_are_counted_and_timed(store, registry):
    await put_bytes(store, "j/f", b"content")
    assert await store.exists("j/f")
    assert await read_all(store, "j/f") == b"content"
    assert len(await listing(store, "j/")) == 1
    await store.sign_get("j/f", 1)
    await store.remove("j/f")
    for operation in ("put", "exists", "get", "list", "signget", "remove"):
        assert operations(registry, operation) == 1
    labels = {"store": URL, "encoding": "none"}
    assert registry.get_sample_value("gazette_store_put_bytes_total", labels) == 7
    found = {"store": URL}
    assert registry.get_sample_value("gazette_store_list_items_count_sum", found) == 1


async def test_failures_are_counted_apart(store, registry):
    with pytest.raises(ObjectNotFound):
        await read_all(store, "j/none")
    assert operations(registry, "get", "error") == 1
    assert operations(registry, "get") is None


async def test_health_checks_are_counted(store, registry):
    async def check(_):
        raise StoreUnavailable("gone")

    async def check_well(_):
        pass

    metrics = StoreMetrics(registry := CollectorRegistry())
    with pytest.raises(StoreUnavailable):
        await metrics.checked(check)(store)
    await metrics.checked(check_well)(store)
    for status in ("ok", "error"):
        labels = {"store": URL, "status": status}
        assert registry.get_sample_value("gazette_store_health_check_total", labels) == 1
