"""Programs ask servers of their own machine directly, though a proxy exists for others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = "import os, gazette_platform.cli; print(os.environ['no_proxy'], os.environ['NO_PROXY'])"


@pytest.mark.parametrize(
    ("given", "no_proxy"),
    [
        ({}, "localhost,127.0.0.1"),
        ({"no_proxy": ".corp,127.0.0.1"}, ".corp,127.0.0.1,localhost"),
        ({"NO_PROXY": ".corp"}, ".corp,localhost,127.0.0.1"),
        ({"no_proxy": ".low", "NO_PROXY": ".up"}, ".low,localhost,127.0.0.1"),
    ],
)
def test_hosts_spared_by_the_user_stay_and_loopback_comes_to_them(given, no_proxy):
    assert printed(given) == f"{no_proxy} {no_proxy}"


def test_a_user_who_spares_every_host_still_does():
    assert printed({"no_proxy": "*", "NO_PROXY": "*"}) == "* *"


def printed(given: dict[str, str]) -> str:
    environment = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**environment, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.strip()
