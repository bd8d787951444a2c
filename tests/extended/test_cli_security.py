"""`gazette serve` and `gazctl` under TLS and tokens, by their flags and variables."""

from __future__ import annotations

import io

import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.servers import BrokerServer

pytestmark = pytest.mark.etcd

KEYS = "bmV3IGtleQ==,b2xkIGtleQ=="
OLD_KEY = "b2xkIGtleQ=="
AGES_S = 4_000_000_000  # from 1970 on: beyond the clock of any machine

SPEC = """
name: secure/journal
replication: 1
fragment: {length: 1024, compression_codec: NONE, stores: [file:///], refresh_interval: 1s}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(etcd_server, tmp_path_factory, authority):
    issued = authority.issue("broker")
    flags = [
        f"--broker.server-cert-file={issued.cert}",
        f"--broker.server-cert-key-file={issued.key}",
        f"--broker.server-ca-file={authority.ca}",
        f"--broker.auth-keys={KEYS}",
        "--broker.http-port=0",
        "--debug.private",
    ]
    folder = tmp_path_factory.mktemp("broker")
    server = BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-secure", flags=flags)
    server.flags += (f"--debug.port={server.http_port}",)  # where readiness is asked for
    with server:
        yield server


@pytest.fixture
def gazctl(broker, authority, monkeypatch, capfd):
    """Run gazctl in this process with these variables. Returns: exit code, output, errors."""
    shown = authority.issue("client")
    tls = {
        "BROKER_ADDRESS": broker.address.replace("http:", "https:"),
        "BROKER_TRUSTED_CA_FILE": str(authority.ca),
        "BROKER_CERT_FILE": str(shown.cert),
        "BROKER_CERT_KEY_FILE": str(shown.key),
    }

    def run(*args, stdin="", **variables):
        for name, value in (tls | variables).items():
            monkeypatch.setenv(name, value)
        raw = io.BytesIO(stdin.encode())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw))
        code = main(["journals", *args])
        done = capfd.readouterr()
        for name in variables:
            monkeypatch.delenv(name)
        return code, done.out, done.err

    return run


def test_gazctl_works_under_tls_with_a_key(gazctl, tmp_path):
    code, _, err = gazctl("apply", "--specs=-", stdin=SPEC, BROKER_AUTH_KEYS=OLD_KEY)
    assert code == 0, err
    selector = ("-l", "name=secure/journal")
    (tmp_path / "input").write_text("content")
    code, _, err = gazctl(
        "append", *selector, f"--input={tmp_path / 'input'}", BROKER_AUTH_KEYS=KEYS
    )
    assert code == 0, err
    for command in (["read", *selector], ["read", *selector, "--broker.cache.size=10"]):
        assert gazctl(*command, BROKER_AUTH_KEYS=KEYS)[:2] == (0, "content")
    code, out, _ = gazctl("fragments", *selector, BROKER_AUTH_KEYS=KEYS)
    assert code == 0
    assert "secure/journal" in out

    keys = KeyRing(KEYS)
    claims = Claims(Capability.LIST, LabelSelector.parse("name:prefix=secure/"))
    token = keys.sign(claims, now=0, lifetime_s=AGES_S)
    code, out, _ = gazctl("list", BROKER_AUTH_TOKEN=token)
    assert code == 0
    assert "secure/journal" in out
    code, _, err = gazctl("read", *selector, BROKER_AUTH_TOKEN=token)
    assert code == 1
    assert "authorization is missing required READ capability (check the auth token" in err


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "missing or empty Authorization token (check the auth token or keys)"),
        ({"BROKER_AUTH_KEYS": "YW5vdGhlcg=="}, "token signature is invalid: signature is invalid"),
        ({"BROKER_AUTH_TOKEN": "abc"}, "token is malformed"),
        ({"BROKER_AUTH_KEYS": "***"}, "--broker.auth-keys: key 0 is not base64"),
        ({"BROKER_TRUSTED_CA_FILE": "/no/such/file"}, "trusted-ca-file: cannot read /no/such/file"),
    ],
)
def test_gazctl_says_why_it_was_not_let_in(gazctl, variables, text):
    code, out, err = gazctl("list", **variables)
    assert (code, out) == (1, "")
    assert text in err
    assert "Traceback" not in err


def test_plain_calls_of_a_tls_broker_fail_clearly(broker, gazctl):
    code, _, err = gazctl("list", BROKER_ADDRESS=broker.address)
    assert code == 1
    assert f"broker {broker.address} is not reachable" in err
