"""Tokens: claims on the wire, keys, and what verification refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac

import orjson
import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.protocol.auth import (
    ALL_CLAIMS,
    LEEWAY_S,
    Capability,
    Claims,
    Forbidden,
    KeyRing,
    Unauthenticated,
    check_times,
)

NOW = 1_700_000_000.0


def key_of(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


ONE, TWO, THREE = (key_of(secret) for secret in (b"one", b"two", b"three"))


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def handmade(claims: object, *, secret: bytes = b"one", alg: str = "HS256") -> str:
    """A token put together here, and not by the library under test."""
    return signed(orjson.dumps(claims), secret=secret, alg=alg)


def signed(payload: bytes, *, secret: bytes = b"one", alg: str = "HS256") -> str:
    head = encoded(orjson.dumps({"alg": alg, "typ": "JWT"}))
    text = head + b"." + encoded(payload)
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
    if alg not in digest:
        return (text + b".").decode()
    signature = encoded(hmac.new(secret, text, digest[alg]).digest())
    return (text + b"." + signature).decode()


def claims_json(**changes: object) -> dict[str, object]:
    labels = {"include": {"labels": None}, "exclude": {"labels": None}}
    return {"cap": 8, "sel": labels, "exp": NOW + 60, "iat": NOW} | changes


# ---------------------------------------------------------------------------------------- keys
def test_u1_a_token_of_one_key_set_is_verified_by_a_reordered_one():
    token = KeyRing(f"{TWO} {ONE}").sign(Claims(Capability.READ), now=NOW, lifetime_s=60)
    payload = KeyRing(f"{THREE}, {ONE},{TWO}").verify(token)
    assert Claims.from_payload(payload).capability == Capability.READ


def test_u1_a_wrong_key_is_reported_in_the_words_of_gazette():
    token = KeyRing(ONE).sign(ALL_CLAIMS, now=NOW, lifetime_s=60)
    with pytest.raises(Unauthenticated) as caught:
        KeyRing(TWO).verify(token)
    assert str(caught.value) == (
        "verifying Authorization: token signature is invalid: signature is invalid"
    )


def test_u1_a_missing_capability_is_named():
    Claims(Capability.LIST | Capability.READ).require(Capability.READ)
    with pytest.raises(Forbidden) as caught:
        Claims(Capability.READ).require(Capability.APPEND)
    assert str(caught.value) == "authorization is missing required APPEND capability"


def test_u1_the_roll_out_key_admits_calls_without_a_token_and_signs_nothing():
    keys = KeyRing(f"AA== {ONE}")
    assert keys.admits_all
    token = keys.sign(ALL_CLAIMS, now=NOW, lifetime_s=60)
    assert KeyRing(ONE).verify(token)
    assert not KeyRing(ONE).admits_all
    # One zero byte is not a secret, so that it must not verify either.
    with pytest.raises(Unauthenticated, match="signature is invalid"):
        keys.verify(handmade(claims_json(), secret=b"\0"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("AA==", "holds no key that could sign"),
        ("", "holds no key that could sign"),
        (f"{ONE} ***", "key 1 is not base64"),
        (f"{ONE} schl\u00fcssel", "key 1 is not base64"),
        (f"{ONE},", None),
        (f" {ONE}\n{TWO}\t", None),
    ],
)
def test_key_lists(text, problem):
    if problem is None:
        KeyRing(text)
    else:
        with pytest.raises(ValidationError, match=problem):
            KeyRing(text)


# ------------------------------------------------------------------------------------- on the wire
def test_claims_are_written_as_gazette_writes_them():
    claims = Claims(Capability.APPEND, LabelSelector.parse("name=a/journal,!old"))
    token = KeyRing(ONE).sign(claims, now=NOW + 0.7, lifetime_s=3600)
    head, payload, _ = (base64.urlsafe_b64decode(p + "==") for p in token.split("."))
    assert orjson.loads(head) == {"alg": "HS256", "typ": "JWT"}
    assert payload == orjson.dumps(
        {
            "cap": 16,
            "sel": {
                "include": {"labels": [{"name": "name", "value": "a/journal"}]},
                "exclude": {"labels": [{"name": "old"}]},
            },
            "exp": int(NOW) + 3600,
            "iat": int(NOW),
        }
    )


@pytest.mark.parametrize("alg", ["HS256", "HS384"])
def test_handmade_tokens_verify(alg):
    payload = KeyRing(f"{TWO} {ONE}").verify(handmade(claims_json(), alg=alg))
    claims = Claims.from_payload(payload)
    assert claims == Claims(8, LabelSelector(), NOW + 60)
    assert claims.match(LabelSet.of(name="any/journal"))


@pytest.mark.parametrize("alg", ["none", "HS512"])
def test_other_algorithms_are_refused(alg):
    with pytest.raises(Unauthenticated, match="expected HS256 or HS384"):
        KeyRing(ONE).verify(handmade(claims_json(), alg=alg))


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.b.c", "....", "{}.{}.{}", "\0"])
def test_invalid_token_is_malformed(token):
    with pytest.raises(Unauthenticated, match="verifying Authorization: token is malformed: "):
        KeyRing(ONE).verify(token)


def test_claims_that_are_not_an_object_are_malformed():
    with pytest.raises(Unauthenticated, match="token is malformed: the claims are not an object"):
        KeyRing(ONE).verify(handmade([1]))


@pytest.mark.parametrize(
    "changes",
    [
        {"cap": "8"},
        {"cap": True},
        {"sel": []},
        {"sel": {"include": 1}},
        {"sel": {"include": {"labels": {}}}},
        {"sel": {"include": {"labels": [1]}}},
        {"sel": {"include": {"labels": [{"value": "x"}]}}},
        {"sel": {"exclude": {"labels": [{"name": "aa", "value": 1}]}}},
        {"sel": {"include": {"labels": [{"name": ""}]}}},
        {"cap": -1},
        {"cap": 1 << 32},
        {"exp": "soon"},
        {"exp": True},
    ],
)
def test_claims_of_wrong_types_are_malformed(changes):
    with pytest.raises(Unauthenticated, match="token is malformed"):
        Claims.from_payload(claims_json(**changes))


SECRET = {"labels": [{"name": "name", "value": "secret/", "prefix": True}]}


@pytest.mark.parametrize(
    ("sel", "key"),
    [
        ({"includes": SECRET}, "sel has an unknown key 'includes'"),
        ({"include": SECRET, "excluded": SECRET}, "'excluded'"),
        ({"include": {"label": SECRET["labels"]}}, "sel.include has an unknown key 'label'"),
        ({"exclude": {"Label": []}}, "sel.exclude has an unknown key 'Label'"),
        ({"include": {"labels": [{"name": "aa", "prefixed": True}]}}, "'prefixed'"),
        ({"name": "secret/a"}, "sel has an unknown key 'name'"),
        ({"include": SECRET, "Include": {}}, "'Include' comes twice"),
    ],
)
def test_a_selector_that_is_not_understood_selects_nothing(sel, key):
    with pytest.raises(Unauthenticated) as caught:
        Claims.from_payload(claims_json(sel=sel))
    assert key in str(caught.value)


def test_keys_are_matched_in_any_case_as_go_matches_them():
    claims = {
        "CAP": 8,
        "Sel": {
            "Include": {"LABELS": [{"Name": "name", "VALUE": "secret/", "Prefix": True}]},
            "EXCLUDE": {"Labels": [{"NAME": "team", "value": "red"}]},
        },
        "Exp": NOW + 60,
        "iAT": NOW,
        "sub": "of no concern",
    }
    payload = KeyRing(ONE).verify(handmade(claims))
    check_times(payload, NOW)
    selector = LabelSelector.parse("name:prefix=secret/, team!=red")
    assert Claims.from_payload(payload) == Claims(8, selector, NOW + 60, "of no concern")
    with pytest.raises(Unauthenticated, match="token is expired"):
        check_times(payload, NOW + 100)


@pytest.mark.parametrize(
    "text",
    [
        b'{"cap": 8, "sel": {"include": {"labels": [{"name": "aa"}]}}, "sel": {}}',
        b'{"cap": 8, "sel": {"include": {"labels": [{"name": "aa"}], "labels": []}}}',
        b'{"cap": 8, "cap": 255}',
    ],
)
def test_a_key_that_comes_twice_is_refused(text):
    token = signed(text)
    with pytest.raises(Unauthenticated, match="a key comes twice"):
        KeyRing(ONE).verify(token)


def test_subject_is_taken_if_it_is_text():
    assert Claims.from_payload(claims_json(sub="me")).subject == "me"
    assert Claims.from_payload(claims_json(sub=7)).subject == ""
    assert Claims.from_payload(claims_json()).subject == ""


@pytest.mark.parametrize(
    "text",
    [b"[" * 5_000, b"[" * 1010 + b"]" * 1010, b'{"exp":' + b"9" * 5_000 + b"}", b"NaN", b"\xff"],
)
def test_unfit_payload_is_malformed(text):
    with pytest.raises(Unauthenticated, match=r"token is malformed|claims are not an object"):
        check_times(KeyRing(ONE).verify(signed(text)), NOW)


@pytest.mark.parametrize("token", ["a.b.\xff", "\udce9.\udce9.\udce9", "é"])
def test_a_token_beyond_ascii_is_malformed(token):
    with pytest.raises(Unauthenticated, match="token is malformed: it is not ASCII"):
        KeyRing(ONE).verify(token)


def test_short_keys_are_pointed_out():
    long = key_of(b"sixteen bytes ok")
    assert KeyRing(f"{long},AA==,{ONE} {key_of(b'x')}").short == [2, 3]


def test_selectors_of_claims_match_whatever_the_order_of_their_labels():
    labels = [{"name": "zz"}, {"name": "name", "value": "a/", "prefix": True}, {"name": "zz"}]
    claims = Claims.from_payload(claims_json(sel={"include": {"labels": labels}}))
    assert claims.match(LabelSet.of(name="a/b", zz="1"))
    assert not claims.match(LabelSet.of(name="a/b"))
    assert not claims.match(LabelSet.of(name="b/a", zz="1"))


def test_capabilities_of_applications_are_kept():
    claims = Claims.from_payload(claims_json(cap=65536 | 8))
    claims.require(Capability(65536))
    claims.require(Capability.READ)


# --------------------------------------------------------------------------------------- times
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"exp": None}, "token is missing required claim: exp claim is required"),
        ({"exp": NOW - LEEWAY_S}, "token is expired"),
        ({"iat": NOW + LEEWAY_S + 1}, "token used before issued"),
        ({"nbf": NOW + LEEWAY_S + 1}, "token is not valid yet"),
    ],
)
def test_times_beyond_the_leeway_are_refused(changes, problem):
    with pytest.raises(Unauthenticated) as caught:
        check_times(claims_json(**changes), NOW)
    assert str(caught.value) == f"verifying Authorization: token has invalid claims: {problem}"


def test_times_within_the_leeway_pass():
    leeway = LEEWAY_S - 1
    check_times(claims_json(exp=NOW - leeway, iat=NOW + leeway, nbf=NOW + leeway), NOW)
