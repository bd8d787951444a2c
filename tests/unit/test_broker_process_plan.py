"""The settings of several broker processes on one host, from those of one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gazette_platform.broker.config import BrokerConfig, configs_of, process_count
from gazette_platform.errors import ValidationError
from gazette_platform.ops.process import usable_cores


def planned(count=3, **settings):
    return configs_of(BrokerConfig(**settings), count, fallback_id="calm-fox-123")


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("8", 8), ("auto", 6), ("512", 512)])
def test_count_is_a_number_or_the_cores(text, count):
    assert process_count(text, cores=6) == count


@pytest.mark.parametrize("text", ["0", "-1", "513", "two", "", "1.5", "²"])
def test_bad_count_is_refused(text):
    with pytest.raises(ValidationError, match="expected 1 to 512, or auto") as caught:
        process_count(text, cores=6)
    assert caught.value.path == "broker.processes"


def test_auto_counts_usable_cores():
    assert 1 <= usable_cores() <= 1024


@pytest.mark.parametrize(
    ("settings", "field", "expected"),
    [
        ({"port": 8080}, "port", [8080, 8081, 8082]),
        ({"port": 0}, "port", [0, 0, 0]),
        ({"http_port": 9000}, "http_port", [9000, 9001, 9002]),
        ({"id": "host-7"}, "id", ["host-7-0", "host-7-1", "host-7-2"]),
        ({}, "id", ["calm-fox-123-0", "calm-fox-123-1", "calm-fox-123-2"]),
        ({"zone": "eu-1a"}, "zone", ["eu-1a"] * 3),
        (
            {"socket": Path("/run/b.sock")},
            "socket",
            [Path("/run/b.sock"), Path("/run/b.sock-1"), Path("/run/b.sock-2")],
        ),
        (
            {"advertise": "https://b-0.example:8080"},
            "advertise",
            [f"https://b-0.example:{port}" for port in (8080, 8081, 8082)],
        ),
        (
            {"advertise": "http://[fd00::1]:80"},
            "advertise",
            [f"http://[fd00::1]:{port}" for port in (80, 81, 82)],
        ),
        (
            {"advertise": "unix://host/run/b.sock"},
            "advertise",
            [f"unix://host/run/b.sock{suffix}" for suffix in ("", "-1", "-2")],
        ),
        ({"debug_port": 7000}, "debug_port", [None] * 3),
        ({"debug_port": 7000}, "debug_private", [True] * 3),
        ({"journal_limit": 100}, "journal_limit", [100] * 3),
        ({"spool_dir": Path("/tmp")}, "spool_dir", [Path("/tmp")] * 3),
    ],
)
def test_settings_of_each_process(settings, field, expected):
    assert [getattr(config, field) for config in planned(**settings)] == expected


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        ({"port": 65534}, "broker.port", "65535 is the last"),
        ({"http_port": 65534}, "broker.http-port", "65535 is the last"),
        ({"advertise": "http://b:65534"}, "broker.advertise", "65535 is the last"),
        ({"port": 8080, "http_port": 8082}, "broker.http-port", "up to 8082 for --broker.port"),
        ({"port": 8082, "http_port": 8080}, "broker.port", "up to 8082 for --broker.http-port"),
        ({"port": 8080, "debug_port": 8081}, "debug.port", "up to 8082 for --broker.port"),
        ({"advertise": "http://b.example"}, "broker.advertise", "has no port"),
        ({"id": "b" * 127}, "broker.id", "invalid length"),
    ],
)
def test_settings_that_cannot_be_shared_are_refused(settings, path, words):
    with pytest.raises(ValidationError, match=words) as caught:
        planned(**settings)
    assert caught.value.path == path


def test_ports_side_by_side_are_accepted():
    found = planned(port=8080, http_port=8083, debug_port=8086)
    assert [config.http_port for config in found] == [8083, 8084, 8085]


def test_settings_survive_the_way_to_the_process():
    for config in planned(auth_keys="AAAA", stores_allowed=("file:///a/",), drain_timeout_s=3.0):
        assert pickle.loads(pickle.dumps(config)) == config
