"""Options of `gazette serve` about security and ports become the settings of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_platform.cli.gazette.serve import SERVE_OPTIONS, broker_config
from gazette_platform.cli.options import option_values
from gazette_platform.client.config import ClientConfig
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.testing.etcd import CertificateAuthority

# Names as in Gazette's own reference: flag, environment variable.
NAMES = {
    "broker.server-cert-file": "BROKER_SERVER_CERT_FILE",
    "broker.server-cert-key-file": "BROKER_SERVER_CERT_KEY_FILE",
    "broker.server-ca-file": "BROKER_SERVER_CA_FILE",
    "broker.peer-cert-file": "BROKER_PEER_CERT_FILE",
    "broker.peer-cert-key-file": "BROKER_PEER_CERT_KEY_FILE",
    "broker.peer-ca-file": "BROKER_PEER_CA_FILE",
    "broker.allow-origin": "BROKER_ALLOW_ORIGIN",
    "broker.auth-keys": "BROKER_AUTH_KEYS",
    "etcd.cert-file": "ETCD_CERT_FILE",
    "etcd.cert-key-file": "ETCD_CERT_KEY_FILE",
    "etcd.trusted-ca-file": "ETCD_TRUSTED_CA_FILE",
    "debug.port": "DEBUG_PORT",
    "debug.private": "DEBUG_PRIVATE",
}
DEFAULTS = {option.name: option.default() for option in SERVE_OPTIONS}


def config(**values):
    names = {option.parameter: option.name for option in SERVE_OPTIONS}
    return broker_config(DEFAULTS | {names[name]: value for name, value in values.items()})


def test_flags_and_variables_are_gazettes():
    have = {option.name: option.variable for option in SERVE_OPTIONS}
    assert NAMES.items() <= have.items()


def test_by_default_nothing_is_guarded():
    plain = config()
    assert plain.server_cert_file is None
    assert plain.auth_keys == ""
    assert plain.allow_origin == ()
    assert plain.debug_port is None


def test_values_become_settings():
    made = config(
        broker_port="8080",
        broker_allow_origin=["https://a.example", "*"],
        broker_auth_keys="c2VjcmV0",
        etcd_cert_file="/e.pem",
        etcd_cert_key_file="/e.key",
        etcd_trusted_ca_file="/ca.pem",
        debug_port=0,
        debug_private=True,
    )
    assert (made.port, made.socket) == (8080, None)
    assert made.allow_origin == ("https://a.example", "*")
    assert made.etcd_tls.cert_file == Path("/e.pem")
    assert made.etcd_tls.trusted_ca_file == Path("/ca.pem")
    assert (made.debug_port, made.debug_private) == (0, True)


def test_a_port_may_be_a_socket():
    assert config(broker_port="unix:///run/broker.sock").socket == Path("/run/broker.sock")


def test_lists_are_kept_in_an_ini_file():
    values = option_values(
        SERVE_OPTIONS, DEFAULTS | {"broker.allow-origin": ["https://a", "https://b"]}
    )
    assert values["broker.allow-origin"] == "https://a https://b"
    assert "broker.allow-origin" not in option_values(SERVE_OPTIONS, DEFAULTS)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"broker_port": "unix://relative"}, "broker.port: expected a port, 0 to 65535, or unix"),
        ({"broker_port": "-1"}, "broker.port: expected a port"),
        ({"broker_port": "70000"}, "broker.port: expected 0 to 65535"),
        ({"broker_server_cert_file": "/x"}, "broker.server-cert-file: a certificate and its key"),
        ({"broker_peer_cert_key_file": "/x"}, "broker.peer-cert-file: a certificate and its key"),
        ({"etcd_cert_file": "/x"}, "--etcd.cert-key-file"),
        ({"broker_server_ca_file": "/x"}, "broker.server-ca-file: needs --broker.server-cert-file"),
        ({"broker_auth_keys": "AA=="}, "broker.auth-keys: holds no key that could sign"),
        ({"broker_auth_keys": "***"}, "broker.auth-keys: key 0 is not base64"),
        ({"broker_allow_origin": ["example"]}, "broker.allow-origin: expected an origin"),
        ({"debug_port": 70000}, "debug.port: expected 0 to 65535"),
    ],
)
def test_values_that_cannot_be_name_their_flag(values, text):
    with pytest.raises(ValidationError) as caught:
        config(**values)
    assert text in str(caught.value)


def test_a_socket_speaks_no_tls():
    with pytest.raises(ValidationError, match=r"broker\.port: unix:///s speaks no TLS"):
        config(
            broker_port="unix:///s", broker_server_cert_file="/c", broker_server_cert_key_file="/k"
        )


def test_secrets_are_in_no_log():
    secret = "c2VjcmV0"
    assert secret not in repr(config(broker_auth_keys=secret))
    assert secret not in repr(ClientConfig(auth_keys=secret, auth_token=secret))


def test_files_are_read_and_checked_together(tmp_path):
    authority = CertificateAuthority(tmp_path)
    one, two = authority.issue("one"), authority.issue("two")

    def tls(cert, key):
        made = config(
            broker_server_cert_file=str(cert),
            broker_server_cert_key_file=str(key),
            broker_server_ca_file=str(authority.ca),
        )
        return made.server_tls

    material = tls(one.cert, one.key).load()
    assert material.cert == one.cert.read_bytes()
    assert material.ca == authority.ca.read_bytes()
    with pytest.raises(SetupError, match="must be PEM and fit each other"):
        tls(one.cert, two.key).load()
    with pytest.raises(SetupError, match=r"cannot read .*missing.*--broker\.server-cert-key-file"):
        tls(one.cert, tmp_path / "missing").load()
