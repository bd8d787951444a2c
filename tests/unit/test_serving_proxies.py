"""Which proxy leads to a target, by variables that other tools read as well."""

import pytest

from gazette_platform.serving.sockets import proxy_for

PROXY = "http://proxy.corp:3128"
FAR = "broker.example:8080"


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, None),
        ({"http_proxy": PROXY}, "http_proxy"),
        ({"http_proxy": PROXY, "https_proxy": PROXY}, "https_proxy"),
        ({"grpc_proxy": PROXY, "https_proxy": PROXY, "http_proxy": PROXY}, "grpc_proxy"),
        ({"grpc_proxy": "", "http_proxy": PROXY}, None),
        ({"HTTP_PROXY": PROXY}, None),
    ],
)
def test_first_variable_that_is_set_names_the_proxy(environment, variable):
    found = proxy_for(FAR, environment)
    assert (found and found.variable) == variable


@pytest.mark.parametrize(
    ("target", "spared", "is_used"),
    [
        (FAR, "", True),
        (FAR, "other.example", True),
        (FAR, "other, .EXAMPLE", False),
        (FAR, "broker.example", False),
        (FAR, "*", False),
        ("10.1.2.3:80", "10.1.0.0/16", False),
        ("10.1.2.3:80", "10.2.0.0/16,10.1.2.3", False),
        ("10.1.2.3:80", "10.2.0.0/16", True),
        ("[fd00::5]:80", "fd00::/8", False),
        ("[fd00::5]:80", "fe80::/10", True),
    ],
)
def test_no_proxy_spares_names_addresses_and_networks(target, spared, is_used):
    assert (proxy_for(target, {"http_proxy": PROXY, "no_proxy": spared}) is not None) is is_used


def test_no_grpc_proxy_replaces_no_proxy():
    environment = {"http_proxy": PROXY, "no_proxy": "*", "no_grpc_proxy": "other.example"}
    assert proxy_for(FAR, environment) is not None


@pytest.mark.parametrize(
    "target", ["localhost:80", "127.0.0.1:80", "127.1.2.3:80", "[::1]:80", "unix:///run/socket"]
)
def test_this_machine_is_asked_without_a_proxy(target):
    assert proxy_for(target, {"http_proxy": PROXY}) is None


@pytest.mark.parametrize(
    ("value", "host", "port", "authorization"),
    [
        ("http://proxy.corp:3128", "proxy.corp", 3128, ""),
        ("http://proxy.corp", "proxy.corp", 80, ""),
        ("http://[fd00::1]:3128/", "fd00::1", 3128, ""),
        ("http://me:a%3Ab@proxy:1", "proxy", 1, "Basic bWU6YTpi"),
        ("http://me@proxy:1", "proxy", 1, "Basic bWU6"),
    ],
)
def test_url_of_a_proxy_has_host_port_and_credentials(value, host, port, authorization):
    found = proxy_for(FAR, {"http_proxy": value})
    assert found is not None
    assert (found.host, found.port, found.authorization) == (host, port, authorization)
    assert "Basic" not in f"{found!r} {found}"


@pytest.mark.parametrize(
    "value", ["proxy:3128", "https://me:secret@proxy:1", "http://proxy:port", "http://[x"]
)
def test_proxy_that_cannot_be_used_is_reported(value, caplog):
    assert proxy_for(FAR, {"http_proxy": value}) is None
    assert "http_proxy is ignored: give it as http://HOST:PORT" in caplog.text
    assert "secret" not in caplog.text
