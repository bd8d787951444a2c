"""What decides in the drivers of object stores: arguments, and what errors mean."""

from __future__ import annotations

import importlib.util

import pytest

from gazette_platform.errors import (
    AccessDenied,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.protocol import parse_store_url
from gazette_platform.stores import open_store
from gazette_platform.stores.answers import ErrorCodes, answer_of, store_error
from gazette_platform.stores.interface import take_args
from gazette_platform.stores.s3 import S3Settings, config_of

CODES = ErrorCodes(
    gone=frozenset({"NoSuchBucket"}), bad_credentials=frozenset({"InvalidAccessKeyId"})
)


def text(status, code="", message="why"):
    """As obstore words it."""
    body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>"
    return (
        f"Object at location j/f not found: Error performing GET https://h/b/j/f in 1ms - Server "
        f"returned non-2xx status code: {status} Some Reason: {body if code else ''}\n\n"
        "Debug source:\nNotFound { status: 599, body: <Code>Wrong</Code> }"
    )


class PermissionDeniedError(Exception):
    """Named as obstore's."""


class UnauthenticatedError(Exception):
    """Named as obstore's."""


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (FileNotFoundError(text(404, "NoSuchKey")), ObjectNotFound, "NoSuchKey: why"),
        (FileNotFoundError(text(404)), ObjectNotFound, "404"),
        (FileNotFoundError(text(404, "NoSuchBucket")), AccessDenied, "create it"),
        (Exception(text(404, "NoSuchBucket")), AccessDenied, "create it"),
        (PermissionDeniedError(text(403, "AccessDenied")), AccessDenied, "allow it"),
        (PermissionDeniedError(text(403)), AccessDenied, "allow it"),
        (PermissionDeniedError("no write without a role"), AccessDenied, "allow it"),
        (Exception(text(403, "AllAccessDisabled")), AccessDenied, "AllAccessDisabled"),
        (PermissionDeniedError(text(403, "InvalidAccessKeyId")), StoreUnavailable, "credentials"),
        (Exception(text(401)), StoreUnavailable, "credentials"),
        (UnauthenticatedError("no token"), StoreUnavailable, "credentials"),
        (Exception(text(503, "SlowDown")), StoreUnavailable, "SlowDown"),
        (Exception("error sending request"), StoreUnavailable, "error sending request"),
        (TimeoutError(), StoreUnavailable, "TimeoutError"),
        (ValueError("Could not parse path"), StoreError, "Could not parse path"),
    ],
)
def test_so8_errors_by_status_and_code(error, kind, says):
    found = store_error(error, CODES, "GET j/f of s3://b/")
    assert type(found) is kind
    assert str(found).startswith("GET j/f of s3://b/: ")
    assert says in str(found)
    # Neither what obstore adds, nor a body that names keys, nor line breaks.
    assert not [each for each in ("Debug", "AKIA", "599", "\n") if each in str(found)]


@pytest.mark.parametrize("code", ["", "NoSuchUpload", "XAdminUserNotFound"])
def test_what_no_object_can_be_missing_for_may_pass(code):
    error = FileNotFoundError(text(404, code))
    assert type(store_error(error, CODES, "PUT", may_be_missing=False)) is StoreUnavailable


def test_long_answers_are_cut():
    assert len(answer_of(Exception("x" * 10_000)).text) == 400
    page = "status code: 502 Bad Gateway: <html><body>a page of a proxy</body></html>"
    assert answer_of(Exception(page)).text == "status code: 502 Bad Gateway:"


def settings(url):
    parsed = parse_store_url(url)
    args = ["profile", "endpoint", "acl", "storageclass", "sse", "ssekmskeyid", "region"]
    return S3Settings.of(parsed, take_args(parsed, frozenset(args)))


def test_arguments_of_s3():
    found = settings(
        "s3://b.c/p/?profile=x&endpoint=http://h:1&StorageClass=GLACIER_IR&SSE=aws:kms&SSEKMSKeyId=k&Region=r"
    )
    assert found == S3Settings(
        bucket="b.c",
        profile="x",
        endpoint="http://h:1",
        region="r",
        storage_class="GLACIER_IR",
        encryption="aws:kms",
        kms_key="k",
    )
    assert settings("s3://b/?endpoint=h:9000").endpoint == "https://h:9000"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("ACL=public-read", "ACL is not supported"),
        ("SSE=none", "not one of AES256, aws:kms, aws:kms:dsse"),
        ("SSEKMSKeyId=k", "needs SSE=aws:kms"),
        ("SSE=AES256&SSEKMSKeyId=k", "needs SSE=aws:kms"),
        ("endpoint=ftp://h", "neither http:// nor https://"),
        ("bogus=1", "unknown query argument"),
        ("Region=a&region=b", "given twice"),
    ],
)
def test_wrong_arguments_of_s3_are_refused_when_it_is_opened(arguments, says):
    with pytest.raises(ValidationError, match=says):
        open_store(f"s3://bucket/?{arguments}", file_root=None)


@pytest.mark.parametrize(
    ("url", "environment", "endpoint", "is_by_host"),
    [
        ("s3://b/", {}, None, True),
        ("s3://b.c/", {}, None, False),
        ("s3://b/?endpoint=http://h:1", {}, "http://h:1", False),
        ("s3://b/", {"AWS_ENDPOINT_URL": "http://e"}, "http://e", False),
        (
            "s3://b/",
            {"AWS_ENDPOINT_URL": "http://e", "AWS_ENDPOINT_URL_S3": "http://s"},
            "http://s",
            False,
        ),
        ("s3://b/?endpoint=http://h:1", {"AWS_ENDPOINT_URL_S3": "http://s"}, "http://h:1", False),
    ],
)
def test_where_s3_is_asked(url, environment, endpoint, is_by_host):
    config = config_of(settings(url), environment, "r")
    assert config.get("endpoint") == endpoint
    assert config.get("aws_endpoint_url_s3") == endpoint
    assert config["virtual_hosted_style_request"] is is_by_host
    assert config["region"] == "r"


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/", "obstore", "s3"),
        ("azure://container/", "azure.storage.blob", "azure"),
        ("azure-ad://tenant/account/container/", "azure.storage.blob", "azure"),
        ("gs://bucket/", "google.cloud.storage", "gcs"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, url, package, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(StoreError, match=rf"package {package} .*gazette-platform\[{extra}\]"):
        open_store(url, file_root=None)


def test_opening_calls_no_server(monkeypatch):
    """Neither settings of AWS, which may be broken, nor the store."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    assert open_store("s3://bucket/p/?region=r", file_root=None).url == "s3://bucket/p/?region=r"
