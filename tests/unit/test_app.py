"""The program of an application: sources of options and their precedence, help, bad input; what it exports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from gazette_platform import app
from gazette_platform.app import Application, MemoryStore, consumer_config, consumer_options, main
from gazette_platform.client import ClientConfig
from gazette_platform.consumer.process import ConsumerConfig

OPTIONS = consumer_options("Counts")


class Counts(Application):
    """Counts *words*."""

    def new_store(self, shard, recorder):
        return MemoryStore({})

    def consume(self, txn, envelope):
        pass


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    """No INI file, no variables of options; those that the program sets are undone."""
    for option in OPTIONS:
        monkeypatch.setenv(option.variable, "")
        monkeypatch.delenv(option.variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def configuration(capsys, *flags):
    assert main(Counts(), ["print-config", *flags]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " = " in line]
    return dict(line.split(" = ", 1) for line in lines)


def test_the_prefix_is_of_the_application_unless_it_is_given(capsys):
    assert configuration(capsys)["prefix"] == "/gazette/consumers/Counts"
    assert configuration(capsys, "--etcd.prefix=/mine/v2")["prefix"] == "/mine/v2"


def test_each_setting_has_an_option():
    """A new field of the settings is of no use to programs without one."""
    have = {option.field for option in OPTIONS if option.config is ConsumerConfig}
    assert {field.name for field in fields(ConsumerConfig)} == (have - {""}) | {
        "broker",
        "etcd_prefix",
    }
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_options_become_settings(tmp_path):
    values = {option.name: option.default() for option in OPTIONS} | {
        "consumer.id": "some-consumer",
        "consumer.zone": "a",
        "consumer.advertise": "http://consumer-0.consumers:8080",
        "consumer.allow-host": ["consumers.example"],
        "consumer.directory": str(tmp_path),
        "consumer.drain-timeout": "1m30s",
        "consumer.hints-interval": "500ms",
        "consumer.limit": 7,
        "broker.address": "http://a:1,http://b:2",
        "broker.auth-token": "token",
        "broker.cache.size": 9,
        "broker.cache.ttl": "5s",
        "broker.file-root": str(tmp_path),
        "etcd.address": "http://a:1,http://b:2",
        "etcd.lease": "3s",
        "etcd.prefix": "/mine",
    }
    assert consumer_config(values) == ConsumerConfig(
        id="some-consumer",
        zone="a",
        advertise="http://consumer-0.consumers:8080",
        allow_host=("consumers.example",),
        directory=tmp_path,
        drain_timeout_s=90.0,
        hints_interval_s=0.5,
        limit=7,
        # A shard waits for brokers that are away, however long.
        broker=ClientConfig(
            address="http://a:1,http://b:2",
            zone="a",
            auth_token="token",
            route_cache_size=9,
            route_cache_ttl_s=5.0,
            file_root=tmp_path,
            retry_timeout_s=None,
        ),
        etcd_address="http://a:1,http://b:2",
        etcd_lease_s=3.0,
        etcd_prefix="/mine",
    )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--consumer.zone=no blanks", "consumer.zone: "),
        ("--consumer.id=abc", "consumer.id: invalid length (3; expected 4"),
        ("--consumer.port=70000", "consumer.port: expected 0 to 65535, got 70000"),
        ("--consumer.http-port=-1", "consumer.http-port: expected 0 to 65535, got -1"),
        ("--consumer.port=many", "--consumer.port"),
        ("--consumer.prot=1", "No such option"),
        ("--consumer.advertise=consumer-0", "consumer.advertise: "),
        ("--consumer.limit=-1", "consumer.limit: expected 0 to 131072"),
        ("--consumer.max-hot-standbys=100", "consumer.max-hot-standbys: expected 0 to 99"),
        (
            "--consumer.directory=/nonexistent",
            "consumer.directory: /nonexistent is not a directory",
        ),
        ("--consumer.drain-timeout=10", "consumer.drain-timeout: "),
        ("--consumer.drain-timeout=-1s", "consumer.drain-timeout: "),
        ("--consumer.allow-origin=x", "consumer.allow-origin: expected an origin such as"),
        ("--consumer.allow-host=a:1", "consumer.allow-host: expected a host name such as"),
        ("--consumer.hints-interval=0s", "consumer.hints-interval: expected more than 0s"),
        ("--consumer.watch-delay=-1s", "consumer.watch-delay: "),
        ("--consumer.max-grpc-recv-size=0", "consumer.max-grpc-recv-size: "),
        ("--consumer.auth-keys=?", "consumer.auth-keys: "),
        (
            "--consumer.server-cert-file=a.pem",
            "consumer.server-cert-file: a certificate and its key",
        ),
        ("--consumer.server-ca-file=ca.pem", "consumer.server-ca-file: needs"),
        ("--consumer.peer-cert-file=a.pem", "consumer.peer-cert-file: a certificate and its key"),
        ("--broker.address=localhost:8080", "broker.address: "),
        ("--broker.cert-file=/nonexistent.pem", "broker.cert-file"),
        ("--broker.auth-token=two\nlines", "broker.auth-token: has characters"),
        ("--broker.cache.size=-1", "broker.cache.size: "),
        ("--broker.cache.ttl=1", "broker.cache.ttl: "),
        ("--broker.auth-keys=?", "broker.auth-keys: "),
        ("--broker.file-root=/nonexistent", "broker.file-root: "),
        ("--etcd.address=localhost:2379", "etcd.address: expected http://host:port"),
        ("--etcd.address=", "etcd.address: expected one or more endpoints"),
        ("--etcd.lease=20", "etcd.lease: "),
        ("--etcd.lease=10ms", "etcd.lease: expected at least 1s"),
        ("--etcd.prefix=relative", "etcd.prefix: "),
        ("--etcd.prefix=", "etcd.prefix: "),
        ("--log.level=loud", "log.level: expected one of trace"),
        ("--log.format=xml", "log.format: expected one of text"),
    ],
)
def test_a_bad_value_is_one_clear_message_that_names_the_flag(flag, message, tmp_path, capsys):
    assert main(Counts(), ["print-config", flag]) == 1
    said = capsys.readouterr()
    assert message in " ".join((said.out + said.err).split())
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_application_that_consumes_nothing_is_reported_so(capsys):
    class Nothing(Application):
        def new_store(self, shard, recorder):
            return MemoryStore({})

    assert main(Nothing(), ["print-config"]) == 1
    assert "Nothing consumes nothing: override `consume`" in capsys.readouterr().err


def test_what_an_application_raises_of_its_own_is_not_called_our_bug(capsys):
    class Careless(Counts):
        def configure(self, values):
            raise KeyError("counts.top")

    assert main(Careless(), ["print-config"]) == 1
    assert capsys.readouterr().err == (
        "Careless: error: Careless.configure raised KeyError: 'counts.top' (GAZETTE_TRACEBACK=1 shows where)\n"
    )


def test_help_names_the_application_its_commands_and_each_option(capsys):
    assert main(Counts(), []) == 1  # as with no command at all
    shown = capsys.readouterr().out
    assert "Counts words." in shown
    assert "serve" in shown
    assert "print-config" in shown
    assert main(Counts(), ["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in OPTIONS:
        assert f"--{option.name}" in shown
        assert option.variable in shown


def test_everything_comes_from_one_import():
    for name in app.__all__:
        assert getattr(app, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Topic'"):
        _ = app.Topic


def test_stores_are_imported_when_they_are_used():
    script = (
        "import sys; from gazette_platform.app import Application, JSONFileStore, run\n"
        "print(sorted({'apsw', 'sqlalchemy', 'rocksdict'} & set(sys.modules)))\n"
        "from gazette_platform.app import SQLiteStore\n"
        "print(sorted({'apsw', 'sqlalchemy', 'rocksdict'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("[]\n['apsw']\n", "")
