import base64
import hashlib
import hmac

import orjson
import pytest

from gazette_platform.cli.gazctl.connection import CONNECTION_VARIABLES
from gazette_platform.client import ClientConfig
from gazette_platform.client.config import VARIABLES
from gazette_platform.client.wire import Authorizer
from gazette_platform.errors import ValidationError
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import Capability


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"address": "localhost:8080"}, r"address: must begin with one of http://"),
        ({"address": "http://"}, "address: missing host"),
        ({"address": "http://host:port"}, "address: "),
        ({"zone": ""}, "zone: must not be empty"),
        ({"route_cache_size": -1}, "route_cache_size: must not be negative"),
        ({"connect_timeout_s": 0}, "connect_timeout_s: must be positive"),
        ({"keepalive_s": 0.5}, "keepalive_s: must be at least 1 s"),
        ({"cert_file": "x.pem"}, "go together"),
    ],
    ids=lambda value: next(iter(value)) + str(value) if isinstance(value, dict) else "",
)
def test_values_that_cannot_work_are_refused(options, text):
    with pytest.raises(ValidationError, match=text):
        ClientConfig(**options)


def decoded(metadata):
    ((name, value),) = metadata
    assert name == "authorization"
    head, claims, digest = value.removeprefix("Bearer ").split(".")
    pad = lambda text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))  # noqa: E731
    return f"{head}.{claims}".encode(), orjson.loads(pad(claims)), pad(digest)


def test_tokens_are_signed_by_the_first_key_that_signs():
    key = b"secret"
    keys = f"AA==, {base64.b64encode(key).decode()},{base64.b64encode(b'old').decode()}"
    auth = Authorizer(ClientConfig(auth_keys=keys), ManualClock())
    signed, claims, digest = decoded(auth.metadata(Capability.APPEND, "a/journal;meta"))
    assert digest == hmac.new(key, signed, hashlib.sha256).digest()
    assert claims["cap"] == 16
    assert claims["sel"] == {
        "include": {"labels": [{"name": "name", "value": "a/journal"}]},
        "exclude": {"labels": None},
    }
    assert claims["exp"] - claims["iat"] == 3600


def test_tokens_carry_the_selector_of_a_list():
    key = base64.b64encode(b"secret").decode()
    auth = Authorizer(ClientConfig(auth_keys=key), ManualClock())
    selector = LabelSelector.parse("name:prefix=a/,!gone")
    _, claims, _ = decoded(auth.metadata(Capability.LIST, selector))
    assert claims["sel"] == {
        "include": {"labels": [{"name": "name", "value": "a/", "prefix": True}]},
        "exclude": {"labels": [{"name": "gone"}]},
    }


def test_fixed_token_and_no_token():
    auth = Authorizer(ClientConfig(auth_token="abc"), ManualClock())
    assert auth.metadata(Capability.READ, "a/journal") == (("authorization", "Bearer abc"),)
    assert Authorizer(ClientConfig(), ManualClock()).metadata(Capability.READ, "a/b") is None
    with pytest.raises(ValidationError, match="auth_keys: key 1 is not base64"):
        Authorizer(ClientConfig(auth_keys="AA==,***"), ManualClock())


def test_the_environment_gives_what_gazctl_takes_from_it():
    variables = {
        "BROKER_ADDRESS": "https://broker.example:8080",
        "ZONE": "here",
        "BROKER_TRUSTED_CA_FILE": "ca.pem",
        "BROKER_CERT_FILE": "",
        "BROKER_AUTH_TOKEN": "abc",
        "HOME": "elsewhere",
    }
    assert ClientConfig.from_environment(
        variables, zone="there", retry_timeout_s=5
    ) == ClientConfig(
        address="https://broker.example:8080",
        zone="there",
        trusted_ca_file="ca.pem",
        auth_token="abc",
        retry_timeout_s=5,
    )
    assert ClientConfig.from_environment({}) == ClientConfig()


def test_variables_are_those_of_gazctl():
    flags = {"zone": "zone"} | {
        name: f"broker.{name.replace('_', '-')}" for name in VARIABLES if name != "zone"
    }
    assert {name: CONNECTION_VARIABLES[flag] for name, flag in flags.items()} == VARIABLES
