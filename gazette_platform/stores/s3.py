"""The ``s3`` store: a bucket of S3, or of a server that speaks its protocol.

Credentials and the region come from where every AWS tool finds them: the environment, the profiles of
``~/.aws``, web identities, containers, instances. botocore looks them up, so that profiles, assumed
roles and single sign-on work; obstore does the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, final
from urllib.parse import quote, urlencode

from gazette_platform.errors import StoreUnavailable, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.stores.answers import ErrorCodes, s3_page
from gazette_platform.stores.interface import KeyRule, take_args
from gazette_platform.stores.objects import (
    ObjectStore,
    Provider,
    Renewed,
    client_options,
    retry_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor
    from datetime import datetime

    from obstore.store import S3Config, S3Credential, S3Store

    from gazette_platform.protocol import StoreUrl


_ARGS: Final = frozenset(
    {"profile", "endpoint", "acl", "storageclass", "sse", "ssekmskeyid", "region"}
)
_CODES: Final = ErrorCodes(
    gone=frozenset({"NoSuchBucket"}),
    bad_credentials=frozenset(
        {
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        }
    ),
)
_ENCRYPTIONS: Final = frozenset({"AES256", "aws:kms", "aws:kms:dsse"})
_SIGNATURE_TTL_S_MAX: Final = 7 * 24 * 3600.0  # of signature version 4
# botocore renews credentials ten minutes before they end at the latest, and has them in memory.
_CREDENTIALS_TTL: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The arguments of an ``s3`` URL, checked."""

    bucket: str
    profile: str = ""
    """Of ``~/.aws``; empty: as every AWS tool chooses."""
    endpoint: str = ""
    """URL of a server; empty: AWS, or what ``AWS_ENDPOINT_URL`` names."""
    region: str = ""
    """Empty: the profile's, or the environment's."""
    storage_class: str = ""
    encryption: str = ""
    """Of objects at rest, by the server."""
    kms_key: str = ""

    @classmethod
    def of(cls, url: StoreUrl, args: Mapping[str, str]) -> Self:
        """Settings from the arguments by lower-case name.

        Raises: ValidationError: a value that S3, or this version, does not know.
        """
        if args.get("acl"):
            # It would have to be part of what is signed, which obstore does not offer.
            raise ValidationError(
                f"fragment store {url.text}: ACL is not supported (objects get the bucket's default; "
                "use a bucket policy, and set the bucket's object ownership to BucketOwnerEnforced)"
            )
        encryption, kms_key = args.get("sse", ""), args.get("ssekmskeyid", "")
        if encryption and encryption not in _ENCRYPTIONS:
            raise ValidationError(
                f"fragment store {url.text}: SSE={encryption} is not one of "
                f"{', '.join(sorted(_ENCRYPTIONS))}"
            )
        if kms_key and not encryption.startswith("aws:kms"):
            raise ValidationError(f"fragment store {url.text}: SSEKMSKeyId needs SSE=aws:kms")
        endpoint = args.get("endpoint", "")
        if endpoint and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ValidationError(
                f"fragment store {url.text}: endpoint={endpoint} is neither http:// nor https://"
            )
        return cls(
            bucket=url.host,
            profile=args.get("profile", ""),
            endpoint=endpoint,
            region=args.get("region", ""),
            storage_class=args.get("storageclass", ""),
            encryption=encryption,
            kms_key=kms_key,
        )


def open_s3(url: StoreUrl, executor: Executor) -> ObjectStore:
    """The store of an ``s3`` URL. Does no I/O.

    Raises: ValidationError: its arguments are wrong.
    """
    args = take_args(url, _ARGS)
    settings = S3Settings.of(url, args)
    identity = _Identity(settings.profile, url.text)
    provider = Provider(
        connect=lambda: _connect(settings, url.text, identity),
        codes=_CODES,
        ask_page=lambda key, more: _ask_page(settings, url.text, identity, key, more),
        read_page=lambda body, key: s3_page(body, settings.bucket, key),
        signature_ttl_s_max=_SIGNATURE_TTL_S_MAX,
        credentials=identity.credentials,
        attributes={"Storage-Class": settings.storage_class} if settings.storage_class else {},
    )
    return ObjectStore(url.text, KeyRule.of(url.prefix.lstrip("/"), args), provider, executor)


def config_of(settings: S3Settings, environment: Mapping[str, str], region: str) -> S3Config:
    """Settings for obstore. `environment`: variables of the process; `region`: that of its profile."""
    endpoint = settings.endpoint or (
        environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    )
    config: S3Config = {
        "bucket": settings.bucket,
        "region": region,
        # Your own server has no name for each bucket, and no certificate fits one with a dot.
        "virtual_hosted_style_request": not endpoint and "." not in settings.bucket,
        "disable_bulk_delete": True,  # one object at a time, and its own error
    }
    if endpoint:
        config["endpoint"] = endpoint
        config["aws_endpoint_url_s3"] = endpoint  # else that of the environment would win
    if settings.encryption:
        config["server_side_encryption"] = settings.encryption
    if settings.kms_key:
        config["sse_kms_key_id"] = settings.kms_key
    return config


def address_of(config: S3Config) -> str:
    """The URL of a bucket, without a slash at the end, as obstore has it.

    >>> address_of({"bucket": "b", "region": "r", "virtual_hosted_style_request": True})
    'https://b.s3.r.amazonaws.com'
    >>> address_of({"bucket": "b", "region": "r", "endpoint": "http://h:1/"})
    'http://h:1/b'
    """
    bucket, endpoint = config["bucket"], config.get("endpoint", "").rstrip("/")
    if config.get("virtual_hosted_style_request"):
        return f"https://{bucket}.s3.{config['region']}.amazonaws.com"
    return f"{endpoint or 'https://s3.' + config['region'] + '.amazonaws.com'}/{bucket}"


def _ask_page(
    settings: S3Settings, url: str, identity: _Identity, key: str, more: str
) -> tuple[str, dict[str, str]]:
    """A signed ListObjectsV2."""
    from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]  # noqa: PLC0415
    from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # noqa: PLC0415
    from botocore.credentials import Credentials  # type: ignore[import-untyped]  # noqa: PLC0415

    query = {"list-type": "2", "prefix": key, "continuation-token": more}
    asked = urlencode(
        {name: text for name, text in query.items() if text}, quote_via=quote, safe=""
    )
    config = _config(settings, url, identity)
    request = AWSRequest("GET", f"{address_of(config)}?{asked}")
    held = identity.credentials.held()[0]
    credentials = Credentials(held["access_key_id"], held["secret_access_key"], held.get("token"))
    S3SigV4Auth(credentials, "s3", config["region"]).add_auth(request)
    return request.url, dict(request.headers.items())


def _connect(settings: S3Settings, url: str, identity: _Identity) -> S3Store:
    """Reads the AWS settings of this user. Raises: StoreUnavailable."""
    from obstore.store import S3Store  # noqa: PLC0415

    config = _config(settings, url, identity)
    return S3Store(
        config=config,
        client_options=client_options(is_http=config.get("endpoint", "").startswith("http://")),
        retry_config=retry_options(),
        credential_provider=lambda: identity.credentials.held()[0],
    )


def _config(settings: S3Settings, url: str, identity: _Identity) -> S3Config:
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        region = settings.region or os.environ.get("AWS_REGION") or ""
        region = region or identity.session().get_config_variable("region") or ""
    except BotoCoreError as err:
        raise StoreUnavailable(f"fragment store {url}: {err} (see ~/.aws/config)") from err
    if not region:
        raise StoreUnavailable(
            f"fragment store {url}: no AWS region (add ?region=… to the URL, or set AWS_REGION)"
        )
    return config_of(settings, os.environ, region)


@final
class _Identity:
    """Who we are, as botocore finds and renews it. What blocks is called in threads."""

    def __init__(self, profile: str, url: str) -> None:
        self._profile = profile
        self._url = url
        self._session: Any = None
        self.credentials: Renewed[S3Credential] = Renewed(self._fetch, SystemClock().now)

    def session(self) -> Any:
        """That of the profile; it keeps the credentials once it found them. Raises: BotoCoreError."""
        from botocore.session import Session  # type: ignore[import-untyped]  # noqa: PLC0415

        if self._session is None:
            session = Session(profile=self._profile or None)
            session.get_config_variable("region")  # says whether there is such a profile
            self._session = session
        return self._session

    def _fetch(self) -> tuple[S3Credential, datetime]:
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

        ends_at = SystemClock().now() + _CREDENTIALS_TTL
        try:
            credentials = self.session().get_credentials()
            frozen = credentials and credentials.get_frozen_credentials()
        except BotoCoreError as err:
            raise StoreUnavailable(f"fragment store {self._url}: {err}") from err
        if frozen is None:
            raise StoreUnavailable(
                f"fragment store {self._url}: no AWS credentials found (set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials)"
            )
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": ends_at,
        }, ends_at
