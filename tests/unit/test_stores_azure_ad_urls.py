"""What decides in `azure-ad://` stores: URLs, addresses to which secrets go, and when keys are renewed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from gazette_platform.errors import StoreUnavailable, ValidationError
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import parse_store_url
from gazette_platform.stores import open_store
from gazette_platform.stores.azure import AdContainer, Application, endpoint_of
from gazette_platform.stores.objects import Renewed

URL = "azure-ad://a-tenant/account1/container/"
PUBLIC = "https://account1.blob.core.windows.net"


@pytest.mark.parametrize(
    ("path", "prefix"), [("", ""), ("a/", "a/"), ("a/date=2026-01-02/b/", "a/date=2026-01-02/b/")]
)
def test_so1_the_url_names_tenant_account_container_and_prefix(path, prefix):
    found = AdContainer.of(parse_store_url(URL + path))
    assert found == AdContainer(
        tenant="a-tenant", account="account1", container="container", prefix=prefix
    )
    assert open_store(URL + path, file_root=None).url == URL + path


@pytest.mark.parametrize(
    ("url", "says"),
    [
        # Each would send a token, or the secret, to another one.
        ("azure-ad://t/evil.example.com%23/c1c/", "no account"),
        ("azure-ad://t/evil.example.com:443/c1c/", "no account"),
        ("azure-ad://t/user@evil/c1c/", "no account"),
        ("azure-ad://t@evil/account1/c1c/", "no tenant"),
        ("azure-ad://t%2Fevil/account1/c1c/", "no tenant"),
        ("azure-ad://.../account1/c1c/", "no tenant"),
        ("azure-ad://t/Account/c1c/", "no account"),
        ("azure-ad://t//c1c/d/", "no account"),
        ("azure-ad://t/account1//d/", "no container"),
        ("azure-ad://t/account1/c/", "no container"),
        ("azure-ad://t/account1/c1--c/", "no container"),
        ("azure-ad://t/account1/c1c%3Fcomp=list/", "no container"),
        ("azure-ad://t/account1/" + "c" * 64 + "/", "no container"),
        ("azure-ad://t/account1/c1c//d/", "empty segment"),
        ("azure-ad://t/account1/c1c/?endpoint=https://h", "unknown query argument"),
    ],
)
def test_so1_what_azure_cannot_know_is_refused(url, says):
    with pytest.raises(ValidationError, match=says):
        open_store(url, file_root=None)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("", PUBLIC),
        (
            "https://{account}.blob.core.chinacloudapi.cn/",
            "https://account1.blob.core.chinacloudapi.cn",
        ),
        ("https://account1.example.com", "https://account1.example.com"),
        ("https://127.0.0.1:10000/account1", "https://127.0.0.1:10000/account1"),
    ],
)
def test_where_blobs_are_asked_for(endpoint, expected):
    environment = {"GAZETTE_AZURE_ENDPOINT": endpoint} if endpoint else {}
    assert endpoint_of(environment, "account1", URL) == expected


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:10000/account1", "not https://"),
        ("https://other.blob.core.windows.net", "of another account"),
        ("https://account10.blob.core.windows.net", "of another account"),
    ],
)
def test_an_endpoint_that_must_not_get_tokens(endpoint, says):
    """A container of another account of the same name would be taken for this one, too."""
    with pytest.raises(StoreUnavailable, match=says):
        endpoint_of({"GAZETTE_AZURE_ENDPOINT": endpoint}, "account1", URL)


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("", "https://login.microsoftonline.com"),
        ("login.chinacloudapi.cn", "https://login.chinacloudapi.cn"),
        ("https://127.0.0.1:1/", "https://127.0.0.1:1"),
    ],
)
def test_where_tokens_are_asked_for(host, authority):
    environment = {"AZURE_CLIENT_ID": "id", "AZURE_CLIENT_SECRET": "hidden"}
    found = Application.of({**environment, "AZURE_AUTHORITY_HOST": host}, "t", URL)
    assert found.authority == authority
    assert "hidden" not in repr(found)
    with pytest.raises(StoreUnavailable, match="not https://"):
        Application.of({**environment, "AZURE_AUTHORITY_HOST": "http://h"}, "t", URL)


class Source:
    """Gives numbers that last two hours, unless it fails."""

    def __init__(self, clock):
        self.clock = clock
        self.count = 0
        self.is_failing = False

    def __call__(self):
        self.count += 1
        if self.is_failing:
            raise StoreUnavailable("gone")
        return self.count, self.clock.now() + timedelta(hours=2)


def test_a_key_is_renewed_at_half_of_its_life():
    clock = ManualClock()
    source = Source(clock)
    renewed = Renewed(source, clock.now)
    assert renewed.is_due()
    assert [renewed.current()[0], renewed.current()[0], renewed.held()[0]] == [1, 1, 1]
    clock.advance(3599)
    assert not renewed.is_due()
    clock.advance(1)
    assert renewed.is_due()
    assert renewed.held()[0] == 1
    assert renewed.current()[0] == 2


def test_a_key_that_cannot_be_renewed_serves_to_its_end():
    clock = ManualClock()
    source = Source(clock)
    renewed = Renewed(source, clock.now)
    renewed.current()
    source.is_failing = True
    clock.advance(3600)
    assert [renewed.current()[0] for _ in range(9)] == [1] * 9
    assert source.count == 2  # a failure is not repeated at each use
    clock.advance(60)
    assert renewed.current()[0] == 1
    assert source.count == 3
    clock.advance(3540)
    for use in (renewed.current, renewed.held):
        with pytest.raises(StoreUnavailable, match="gone"):
            use()
    source.is_failing = False
    assert renewed.held()[0] == 6


def test_those_who_wait_for_an_attempt_share_its_failure():
    """An authority that does not answer must not be waited for by each of them in turn."""
    began, go_on = threading.Event(), threading.Event()
    attempts = []

    def fetch():
        attempts.append(None)
        began.set()
        assert go_on.wait(60)
        raise StoreUnavailable("gone")

    class Lock:
        """Says how many asked for it, the one who has it included."""

        asked = 0

        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            Lock.asked += 1
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    renewed = Renewed(fetch, ManualClock().now)
    renewed._lock = Lock()
    with ThreadPoolExecutor(8) as executor:
        first = executor.submit(renewed.current)
        assert began.wait(60)
        others = [executor.submit(renewed.current) for _ in range(7)]
        while Lock.asked < 8:
            threading.Event().wait(0.01)
        go_on.set()
        for each in (first, *others):
            with pytest.raises(StoreUnavailable):
                each.result(60)
    assert len(attempts) == 1
