"""Hosts and origins that the HTTP port takes, and those that only a foreign page would send."""

from __future__ import annotations

import base64

import pytest

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.http_guard import HostGuard, host_name
from gazette_platform.errors import ValidationError

KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()


@pytest.mark.parametrize(
    "host",
    [
        "",  # of HTTP/1.0, which no browser speaks
        "localhost:8081",
        "LOCALHOST",
        "console.localhost:8081",
        "127.0.0.1:8081",
        "10.1.2.3",
        "[::1]:8081",
        "broker.example:8081",
        "Broker.Example.",
    ],
)
def test_names_of_the_broker_and_addresses_are_taken(host):
    assert HostGuard(["broker.example"], []).refused_host(host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8081",
        "broker.example.evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "[::1",
        "localhost:80:80@evil.example",
        "evil.example#localhost",
        "evil.example?localhost",
        "\x00",
        "x" * 5000,
    ],
)
def test_other_names_are_refused(host):
    text = HostGuard(["broker.example"], []).refused_host(host)
    assert "--broker.allow-host" in text


def test_a_star_takes_any_name():
    assert HostGuard(["*"], []).refused_host("anything.example") == ""


@pytest.mark.parametrize(
    ("method", "origin", "is_refused"),
    [
        ("PUT", "", False),
        ("PUT", "http://localhost:8081", False),
        ("PUT", "https://LOCALHOST:8081", False),  # behind a proxy that speaks TLS
        ("PUT", "http://localhost:3000", True),
        ("PUT", "http://evil.example", True),
        ("PUT", "null", True),
        ("PUT", "http://[", True),
        ("GET", "http://[::1", False),
        ("POST", "http://evil.example", True),
        ("GET", "http://evil.example", False),  # which it cannot read: the answer does not say so
        ("PUT", "https://console.example", False),
    ],
)
def test_pages_of_other_origins_change_nothing(method, origin, is_refused):
    guard = HostGuard([], ["https://console.example"])
    assert bool(guard.refused_origin(method, "localhost:8081", origin)) is is_refused
    assert not HostGuard([], ["*"]).refused_origin(method, "localhost:8081", origin)


def test_the_check_is_for_brokers_that_do_not_know_their_callers():
    advertised = BrokerConfig(advertise="http://broker-1.example:8080", allow_host=("lb.example",))
    assert {"127.0.0.1", "broker-1.example", "lb.example"} <= set(advertised.host_names)
    assert "*" not in advertised.host_names
    assert BrokerConfig(auth_keys=KEY).host_names == ("*",)
    assert "*" not in BrokerConfig(auth_keys=f"{KEY},AA==").host_names


@pytest.mark.parametrize("name", ["", "http://broker.example", "broker.example:8081", "a/b"])
def test_what_is_no_host_name_is_refused(name):
    with pytest.raises(ValidationError, match=r"broker.allow-host: expected a host name"):
        BrokerConfig(allow_host=(name,))


def test_names_are_read_as_browsers_write_them():
    assert host_name("Broker.Example.:80") == "broker.example"
    assert host_name("[::1]:80") == "::1"
    assert host_name("[::") == ""
