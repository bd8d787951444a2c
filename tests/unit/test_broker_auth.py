"""Who may call a broker: the header, the remembered tokens, and the end of a call's time."""

from __future__ import annotations

import base64

import pytest

from gazette_platform.client.config import ClientConfig
from gazette_platform.client.wire import Authorizer
from gazette_platform.errors import ValidationError
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import (
    ALL_CLAIMS,
    LEEWAY_S,
    Capability,
    Forbidden,
    Unauthenticated,
)
from gazette_platform.serving.auth import Authenticator

ONE, TWO = (base64.b64encode(secret).decode() for secret in (b"one" * 11, b"two" * 11))


def metadata_of(keys, clock, capability=Capability.READ, selector="a/journal"):
    return dict(Authorizer(ClientConfig(auth_keys=keys), clock).metadata(capability, selector))


def test_without_keys_every_call_is_allowed_everything():
    auth = Authenticator(" ", ManualClock())
    claims = auth.authorize({}, Capability.REPLICATE)
    assert claims is ALL_CLAIMS
    assert auth.remaining_s(claims) is None


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, "missing or empty Authorization token"),
        ({"authorization": ""}, "missing or empty Authorization token"),
        (
            {"authorization": "Basic abc"},
            "invalid or unsupported Authorization header (expected 'Bearer')",
        ),
        ({"authorization": "Bearer "}, "verifying Authorization: token is malformed"),
    ],
)
def test_headers_that_carry_no_token_are_refused(metadata, text):
    with pytest.raises(Unauthenticated) as caught:
        Authenticator(ONE, ManualClock()).authorize(metadata, Capability.READ)
    assert str(caught.value).startswith(text)


def test_a_token_gives_its_claims():
    clock = ManualClock()
    auth = Authenticator(f"{TWO},{ONE}", clock)
    claims = auth.authorize(metadata_of(ONE, clock), Capability.READ)
    assert claims.selector == LabelSelector.parse("name=a/journal")
    assert auth.remaining_s(claims) == pytest.approx(3600 + LEEWAY_S, abs=1)


def test_a_token_lacks_other_capabilities():
    clock = ManualClock()
    with pytest.raises(Forbidden, match="authorization is missing required APPLY capability"):
        Authenticator(ONE, clock).authorize(metadata_of(ONE, clock), Capability.APPLY)


def test_a_remembered_token_expires_all_the_same():
    clock = ManualClock()
    auth = Authenticator(ONE, clock)
    metadata = metadata_of(ONE, clock)
    auth.authorize(metadata, Capability.READ)
    clock.advance(3600 + LEEWAY_S + 1)
    with pytest.raises(Unauthenticated, match="token is expired"):
        auth.authorize(metadata, Capability.READ)


def test_a_remembered_token_is_checked_for_each_capability():
    clock = ManualClock()
    auth = Authenticator(ONE, clock)
    metadata = metadata_of(ONE, clock)
    auth.authorize(metadata, Capability.READ)
    with pytest.raises(Forbidden):
        auth.authorize(metadata, Capability.APPEND)


def test_the_roll_out_key_admits_no_bad_token():
    clock = ManualClock()
    auth = Authenticator(f"AA== {ONE}", clock)
    assert auth.authorize({}, Capability.APPLY) is ALL_CLAIMS
    with pytest.raises(Unauthenticated, match="signature is invalid"):
        auth.authorize(metadata_of(TWO, clock), Capability.READ)


def test_bad_keys_name_their_flag():
    with pytest.raises(ValidationError, match=r"broker\.auth-keys: holds no key that could sign"):
        Authenticator("AA==", ManualClock())


# --------------------------------------------------------------------------------- who signs
def test_a_client_signs_again_when_half_of_a_tokens_life_is_over():
    clock = ManualClock()
    authorizer = Authorizer(ClientConfig(auth_keys=ONE), clock)
    first = authorizer.metadata(Capability.READ, "a/journal")
    clock.advance(1799)
    assert authorizer.metadata(Capability.READ, "a/journal") is first
    clock.advance(2)
    second = authorizer.metadata(Capability.READ, "a/journal")
    assert second != first
    claims = Authenticator(ONE, clock).authorize(dict(second), Capability.READ)
    assert Authenticator(ONE, clock).remaining_s(claims) > 3590


def test_tokens_of_different_journals_and_capabilities_are_different():
    authorizer = Authorizer(ClientConfig(auth_keys=ONE), ManualClock())
    made = {
        authorizer.metadata(capability, journal)
        for capability in (Capability.READ, Capability.APPEND)
        for journal in ("a/journal", "b/journal")
    }
    assert len(made) == 4


def test_a_client_keeps_a_bounded_number_of_tokens(monkeypatch):
    monkeypatch.setattr("gazette_platform.client.wire._TOKENS_MAX", 2)
    authorizer = Authorizer(ClientConfig(auth_keys=ONE), ManualClock())
    first = authorizer.metadata(Capability.READ, "a/one")
    second = authorizer.metadata(Capability.READ, "a/two")
    authorizer.metadata(Capability.READ, "a/three")
    assert authorizer.metadata(Capability.READ, "a/two") is second
    assert authorizer.metadata(Capability.READ, "a/one") is not first
