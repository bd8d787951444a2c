"""Who may have a browser's request carried out, by its Host and Origin."""

from __future__ import annotations

import pytest

from gazette_platform.ops.network import HostGuard


@pytest.mark.parametrize(
    ("origin", "is_refused"),
    [
        ("", False),  # no page's
        ("http://localhost:8080", False),
        ("HTTP://LOCALHOST:8080", False),
        ("http://localhost:80800", True),
        ("http://localhost:808", True),
        ("http://localhost", True),
        ("http://localhost:8080.evil.example", True),
        ("http://evil.example", True),
        ("null", True),
        ("http://[", True),
    ],
)
def test_only_pages_of_the_very_same_port_may_change_anything(origin, is_refused):
    guard = HostGuard((), ())
    for method in ("PUT", "POST", "DELETE"):
        assert bool(guard.refused_origin(method, "localhost:8080", origin)) == is_refused
    assert not guard.refused_origin("GET", "localhost:8080", origin)


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("", False),  # not a browser
        ("localhost:8080", False),
        ("notebook.localhost", False),
        ("127.0.0.1:8080", False),
        ("[::1]:8080", False),
        ("Broker.Example.:8080", False),
        ("evil.example", True),
        ("evil.example:8080", True),
        ("localhost.evil.example", True),
        ("notlocalhost", True),
        ("other.broker.example", True),
    ],
)
def test_hosts_by_other_names_are_refused(host, is_refused):
    assert bool(HostGuard(("broker.example",), ()).refused_host(host)) == is_refused
    assert not HostGuard(("*",), ()).refused_host(host)
