"""Settings of a broker: what is accepted, and what a refusal says."""

from __future__ import annotations

import dataclasses

import pytest

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.errors import ValidationError


def test_defaults_are_valid_and_gazettes():
    config = BrokerConfig()
    assert config.etcd_endpoints == ("http://localhost:2379",)
    assert (config.etcd_prefix, config.etcd_lease_s) == ("/gazette/cluster", 20.0)
    assert (config.journal_limit, config.max_replication) == (1024, 9)
    assert (config.min_append_rate, config.max_append_rate) == (65536, 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "abc"}, "broker.id: invalid length (3; expected 4 <="),
        ({"id": "has a blank"}, "broker.id: not a valid token (has a blank)"),
        ({"zone": ""}, "broker.zone: invalid length (0; expected 1 <="),
        ({"zone": "z" * 33}, "broker.zone: invalid length (33; expected 1 <="),
        ({"zone": "zone!"}, "broker.zone: not a valid token (zone!)"),
        ({"port": 65536}, "broker.port: expected 0 to 65535, got 65536"),
        ({"http_port": -1}, "broker.http-port: expected 0 to 65535, got -1"),
        ({"journal_limit": -1}, "broker.limit: expected 0 to 131072, got -1"),
        ({"journal_limit": (1 << 17) + 1}, "broker.limit: expected 0 to 131072"),
        ({"watch_delay_s": -1.0}, "broker.watch-delay: expected at least 0s, got -1.0"),
        ({"max_grpc_recv_size": 0}, "broker.max-grpc-recv-size: expected more than 0, got 0"),
        ({"drain_timeout_s": -1.0}, "broker.drain-timeout: expected at least 0s, got -1.0"),
        ({"etcd_lease_s": 0.5}, "etcd.lease: expected at least 1s, got 0.5"),
        ({"max_append_rate": -1}, "broker.max-append-rate: expected at least 0, got -1"),
        ({"min_append_rate": -1}, "broker.min-append-rate: expected at least 0, got -1"),
        ({"max_replication": 0}, "broker.max-replication: expected at least 1, got 0"),
        ({"append_wait_s": -1.0}, "broker.append-wait: expected at least 0s, got -1.0"),
        ({"etcd_prefix": "gazette"}, "etcd.prefix: bad etcd prefix"),
        ({"etcd_prefix": "/gazette/"}, "etcd.prefix: bad etcd prefix"),
        ({"etcd_prefix": "/a//b"}, "etcd.prefix: bad etcd prefix"),
        ({"etcd_prefix": "/a/../b"}, "etcd.prefix: bad etcd prefix"),
        ({"advertise": "broker-0:8080"}, "broker.advertise: "),
        ({"advertise": "http://broker-0:many"}, "broker.advertise: "),
        ({"etcd_address": "localhost:2379"}, "etcd.address: expected http://host:port"),
        ({"etcd_address": " , "}, "etcd.address: expected one or more endpoints"),
        ({"etcd_address": "http://a:1, ftp://b:2"}, "etcd.address: expected http://host:port"),
        ({"file_only": True}, "broker.file-only: needs --broker.file-root"),
    ],
)
def test_a_bad_value_is_named_with_its_flag(change, text):
    with pytest.raises(ValidationError) as caught:
        BrokerConfig(**change)
    assert text in str(caught.value)


@pytest.mark.parametrize("flag", ["file_root", "spool_dir"])
def test_directories_must_exist(flag, tmp_path):
    with pytest.raises(ValidationError, match="is not a directory; create it first"):
        BrokerConfig(**{flag: tmp_path / "missing"})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValidationError, match="is not a directory"):
        BrokerConfig(**{flag: tmp_path / "file"})
    assert getattr(BrokerConfig(**{flag: tmp_path}), flag) == tmp_path


def test_several_etcd_endpoints_are_split():
    config = BrokerConfig(etcd_address="http://a:2379, https://b:2379,unix:///run/etcd.sock")
    assert config.etcd_endpoints == ("http://a:2379", "https://b:2379", "unix:///run/etcd.sock")


def test_settings_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerConfig().port = 1  # type: ignore[misc]
