"""The ``azure`` and ``azure-ad`` stores: containers of Azure Blob Storage.

``azure`` uses the shared key of the account. ``azure-ad`` uses an application of Microsoft Entra ID (a *service
principal*, once of Azure Active Directory): it shows its secret to the authority of its tenant, which issues a token
for an hour or so, and obstore sends that with its requests. URLs are signed by a *user delegation key*, which the
account issues to a bearer of such a token. It is fetched once an hour, so signing a URL makes no call.

Source: Gazette's stores of these schemes. Departs: URLs of ``azure-ad`` end with the key that signs them.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, final
from urllib.parse import quote, urlencode

from gazette_platform.errors import AccessDenied, StoreError, StoreUnavailable, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.stores.answers import ErrorCodes, azure_page
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

    from azure.core.credentials import AccessToken
    from azure.core.exceptions import AzureError
    from azure.storage.blob import UserDelegationKey
    from obstore.store import AzureBearerToken, AzureStore

    from gazette_platform.protocol import StoreUrl

CODES: Final = ErrorCodes(
    gone=frozenset(
        {"AccountIsDisabled", "ContainerBeingDeleted", "ContainerDisabled", "ContainerNotFound"}
    ),
    bad_credentials=frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo"}),
)
_SIGNATURE_TTL_S_MAX: Final = 365 * 24 * 3600.0  # Azure sets no limit
CLOCK_SKEW: Final = timedelta(minutes=5)
"""Before now a signature begins to be valid, for clocks of others that lag behind ours."""
_LISTING_TTL: Final = timedelta(minutes=15)  # of the signature of one page
# Characters of a key that stand for themselves in a path.
_URL_SAFE: Final = "/-._~!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Of Azure, as the environment names it."""

    name: str
    key: str
    """Shared key, in base64."""
    endpoint: str
    """URL of its blobs, without a slash at the end."""

    @classmethod
    def of(cls, environment: Mapping[str, str], url: str) -> Self:
        """Raises: StoreUnavailable: its name or key is missing."""
        name = environment.get("AZURE_ACCOUNT_NAME", "")
        key = environment.get("AZURE_ACCOUNT_KEY", "")
        if not name or not key:
            raise StoreUnavailable(
                f"fragment store {url}: no account of Azure (set AZURE_ACCOUNT_NAME and "
                "AZURE_ACCOUNT_KEY)"
            )
        endpoint = environment.get("GAZETTE_AZURE_ENDPOINT", "").rstrip("/")
        endpoint = endpoint.replace("{account}", name)
        return cls(name=name, key=key, endpoint=endpoint or f"https://{name}.blob.core.windows.net")


def open_azure(url: StoreUrl, executor: Executor) -> ObjectStore:
    """The store of an ``azure`` URL. Does no I/O.

    Raises: ValidationError: its arguments are wrong.
    """
    args = take_args(url, frozenset())
    provider = Provider(
        connect=lambda: _connect(Account.of(os.environ, url.text), url.host),
        codes=CODES,
        ask_page=lambda key, more: _ask_page(Account.of(os.environ, url.text), url.host, key, more),
        read_page=lambda body, key: azure_page(body, url.host, key),
        signature_ttl_s_max=_SIGNATURE_TTL_S_MAX,
        # obstore 0.12 signs the escaped path, and Azure checks the plain one: they differ for names
        # with characters that have to be escaped.
        sign=lambda key, ttl_s: _sign(Account.of(os.environ, url.text), url.host, key, ttl_s),
    )
    return ObjectStore(url.text, KeyRule.of(url.prefix.lstrip("/"), args), provider, executor)


def _connect(account: Account, container: str) -> AzureStore:
    from obstore.store import AzureStore  # noqa: PLC0415  an extra

    return AzureStore(
        config={
            "account_name": account.name,
            "account_key": account.key,
            "container_name": container,
            "endpoint": account.endpoint,
        },
        client_options=client_options(is_http=account.endpoint.startswith("http://")),
        retry_config=retry_options(),
    )


def _ask_page(account: Account, container: str, key: str, more: str) -> tuple[str, dict[str, str]]:
    """A List Blobs, signed for listing this container."""
    from azure.storage.blob import (  # noqa: PLC0415  an extra
        ContainerSasPermissions,
        generate_container_sas,
    )

    now = SystemClock().now()
    signature = generate_container_sas(
        account.name,
        container,
        account_key=account.key,
        permission=ContainerSasPermissions(list=True),
        start=now - CLOCK_SKEW,
        expiry=now + _LISTING_TTL,
    )
    return f"{listing_url(account.endpoint, container, key, more)}&{signature}", {}


def listing_url(endpoint: str, container: str, key: str, more: str) -> str:
    """The URL of a List Blobs, without what proves who asks."""
    query = {"restype": "container", "comp": "list", "prefix": key, "marker": more}
    asked = urlencode(
        {name: text for name, text in query.items() if text}, quote_via=quote, safe=""
    )
    return f"{endpoint}/{container}?{asked}"


def _sign(account: Account, container: str, key: str, ttl_s: float) -> str:
    from azure.storage.blob import BlobSasPermissions, generate_blob_sas  # noqa: PLC0415  an extra

    now = SystemClock().now()
    signature = generate_blob_sas(
        account.name,
        container,
        key,
        account_key=account.key,
        permission=BlobSasPermissions(read=True),
        start=now - CLOCK_SKEW,
        expiry=now + timedelta(seconds=ttl_s),
    )
    return blob_url(account.endpoint, container, key, signature)


def blob_url(endpoint: str, container: str, key: str, signature: str) -> str:
    """The URL of a blob. `signature`: its query, signed."""
    return f"{endpoint}/{container}/{quote(key, safe=_URL_SAFE)}?{signature}"


_SCOPE: Final = "https://storage.azure.com/.default"  # of all accounts, in every cloud
_AUTHORITY: Final = "https://login.microsoftonline.com"

# Of the service, at least 2017-11-09 for tokens; names that XML cannot have are encoded since 2021-02-12.
_API_VERSION: Final = "2021-12-02"

_KEY_LIFE: Final = timedelta(hours=2)

_CONNECT_TIMEOUT_S: Final = 5
_READ_TIMEOUT_S: Final = 15
_RETRIES_MAX: Final = 2
_TEXT_LENGTH_MAX: Final = 400

# These come from specs, and become parts of addresses to which secrets are sent: a name that could
# change the address would send them to another server.
_TENANT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER: Final = re.compile(r"\$root|(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdContainer:
    """A container, as the URL of a store names it."""

    tenant: str
    """Of the application: its id, or one of its domains."""
    account: str
    container: str
    prefix: str
    """Of all keys: empty, or ends in a slash."""

    @classmethod
    def of(cls, url: StoreUrl) -> Self:
        """Raises: ValidationError: a part is none that Azure could know."""
        account, _, rest = url.prefix.partition("/")
        container, _, prefix = rest.partition("/")
        for name, value, rule, says in (
            ("tenant", url.host, _TENANT, "the id of a tenant, or its domain"),
            ("account", account, _ACCOUNT, "3 to 24 lower-case letters and digits"),
            (
                "container",
                container,
                _CONTAINER,
                "3 to 63 lower-case letters, digits and single '-'",
            ),
        ):
            if not rule.fullmatch(value):
                raise ValidationError(
                    f"fragment store {url.text}: {value!r} is no {name} of Azure ({says}; the form is "
                    "azure-ad://tenant/account/container/prefix/)"
                )
        return cls(tenant=url.host, account=account, container=container, prefix=prefix)


def endpoint_of(environment: Mapping[str, str], account: str, url: str) -> str:
    """The address of the blobs of an account, without a slash at the end.

    Raises: StoreUnavailable: the one that is configured is of another account, or not safe.
    """
    endpoint = environment.get("GAZETTE_AZURE_ENDPOINT", "").rstrip("/")
    if not endpoint:
        return f"https://{account}.blob.core.windows.net"
    endpoint = endpoint.replace("{account}", account)
    if not endpoint.startswith("https://"):
        raise StoreUnavailable(
            f"fragment store {url}: GAZETTE_AZURE_ENDPOINT={endpoint} is not https:// (tokens are sent "
            "over TLS only)"
        )
    if account not in re.split(r"[/.:]", endpoint):
        raise StoreUnavailable(
            f"fragment store {url}: GAZETTE_AZURE_ENDPOINT={endpoint} is of another account than "
            f"{account} (write {{account}} in its place)"
        )
    return endpoint


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Who we are to the authority of a tenant."""

    authority: str
    """URL, without a slash at the end."""
    tenant: str
    client_id: str
    secret: str = field(repr=False)
    store: str
    """URL of the store, for errors."""

    @classmethod
    def of(cls, environment: Mapping[str, str], tenant: str, url: str) -> Self:
        """Raises: StoreUnavailable: the environment names no application, or no safe authority."""
        client_id = environment.get("AZURE_CLIENT_ID", "")
        secret = environment.get("AZURE_CLIENT_SECRET", "")
        if not client_id or not secret:
            raise StoreUnavailable(
                f"fragment store {url}: no application of Entra ID (set AZURE_CLIENT_ID and "
                "AZURE_CLIENT_SECRET)"
            )
        authority = environment.get("AZURE_AUTHORITY_HOST", "").rstrip("/") or _AUTHORITY
        if "://" not in authority:
            authority = f"https://{authority}"
        if not authority.startswith("https://"):
            raise StoreUnavailable(
                f"fragment store {url}: AZURE_AUTHORITY_HOST={authority} is not https:// (the secret is "
                "sent over TLS only)"
            )
        return cls(
            authority=authority, tenant=tenant, client_id=client_id, secret=secret, store=url
        )

    def fetch_token(self) -> tuple[str, datetime]:
        """A new token for the blobs of all accounts that the application may use, and when it ends.

        Waits for the authority, which is asked three times at most.

        Raises: StoreUnavailable: there is none, and why.
        """
        from azure.core import PipelineClient  # noqa: PLC0415  an extra
        from azure.core.exceptions import AzureError  # noqa: PLC0415
        from azure.core.pipeline.policies import RetryPolicy  # noqa: PLC0415
        from azure.core.rest import HttpRequest, HttpResponse  # noqa: PLC0415

        request = HttpRequest(
            "POST",
            f"{self.authority}/{self.tenant}/oauth2/v2.0/token",
            data={
                "grant_type": "client_credentials",
                "client_id": self.client_id,
                "client_secret": self.secret,
                "scope": _SCOPE,
            },
        )
        client: PipelineClient[HttpRequest, HttpResponse] = PipelineClient(
            self.authority,
            policies=[RetryPolicy(retry_total=_RETRIES_MAX)],
            connection_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
        )
        asked_at = SystemClock().now()
        try:
            with client:
                response = client.send_request(request)
                body = response.text()
        except AzureError as err:
            raise self._refused(str(err)) from err
        try:
            found = json.loads(body)
            token, life = str(found["access_token"]), timedelta(seconds=int(found["expires_in"]))
        except (ValueError, TypeError, KeyError, OverflowError) as err:
            raise self._refused(
                f"HTTP {response.status_code}: {_complaint(body)} (check AZURE_CLIENT_ID, "
                "AZURE_CLIENT_SECRET, and the tenant in the URL)"
            ) from err
        return token, asked_at + life

    def _refused(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"fragment store {self.store}: no token from {self.authority}: {' '.join(why.split())}"
        )


def _complaint(body: str) -> str:
    """What an authority says in an answer without a token; never the answer itself, which might have one."""
    try:
        found = json.loads(body)
        text = f"{found['error']}: {found.get('error_description', '')}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return "its answer is none of an authority"
    return text.partition("\n")[0].strip()[:_TEXT_LENGTH_MAX]


def open_azure_ad(url: StoreUrl, executor: Executor) -> ObjectStore:
    """The store of an ``azure-ad`` URL. Does no I/O.

    Args:
        executor: its threads may wait for the authority and the account, some 15 s for each try.

    Raises: ValidationError: its parts or arguments are wrong.
    """
    args = take_args(url, frozenset())
    place = AdContainer.of(url)
    now = SystemClock().now
    tokens = Renewed(lambda: _fetch_token(place, url.text), now)
    keys = Renewed(lambda: _fetch_key(place, url.text, tokens), now)
    provider = Provider(
        connect=lambda: _connect_ad(place, url.text, tokens),
        codes=CODES,
        ask_page=lambda key, more: _ask_page_ad(place, url.text, tokens, key, more),
        read_page=lambda body, key: azure_page(body, place.container, key),
        signature_ttl_s_max=_KEY_LIFE.total_seconds(),
        sign=lambda key, ttl_s: _sign_ad(place, url.text, keys, key, ttl_s),
        credentials=tokens,
    )
    return ObjectStore(url.text, KeyRule.of(place.prefix, args), provider, executor)


def _fetch_token(place: AdContainer, url: str) -> tuple[str, datetime]:
    """A token of the authority, and when it ends. Raises: StoreUnavailable."""
    return Application.of(os.environ, place.tenant, url).fetch_token()


def _connect_ad(place: AdContainer, url: str, tokens: Renewed[str]) -> AzureStore:
    from obstore.store import AzureStore  # noqa: PLC0415  an extra

    def bearer() -> AzureBearerToken:
        token, ends_at = tokens.held()
        return {"token": token, "expires_at": ends_at}

    return AzureStore(
        config={
            "account_name": place.account,
            "container_name": place.container,
            "endpoint": endpoint_of(os.environ, place.account, url),
        },
        client_options=client_options(is_http=False),
        retry_config=retry_options(),
        credential_provider=bearer,
    )


def _ask_page_ad(
    place: AdContainer, url: str, tokens: Renewed[str], key: str, more: str
) -> tuple[str, dict[str, str]]:
    endpoint = endpoint_of(os.environ, place.account, url)
    headers = {"Authorization": f"Bearer {tokens.held()[0]}", "x-ms-version": _API_VERSION}
    return listing_url(endpoint, place.container, key, more), headers


@final
class _Bearer:
    """The token in the form that packages of ``azure`` expect of a credential."""

    def __init__(self, tokens: Renewed[str]) -> None:
        self._tokens = tokens

    def get_token(self, *_scopes: str, **_kwargs: Any) -> AccessToken:
        from azure.core.credentials import AccessToken  # noqa: PLC0415  an extra

        token, ends_at = self._tokens.current()
        return AccessToken(token, int(ends_at.timestamp()))


def _fetch_key(
    place: AdContainer, url: str, tokens: Renewed[str]
) -> tuple[UserDelegationKey, datetime]:
    """A user delegation key of the account, and when it ends. Raises: StoreError."""
    from azure.core.exceptions import AzureError  # noqa: PLC0415  an extra
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    service = BlobServiceClient(
        endpoint_of(os.environ, place.account, url),
        credential=_Bearer(tokens),
        retry_total=_RETRIES_MAX,
        connection_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
    )
    now = SystemClock().now()
    ends_at = now + _KEY_LIFE
    try:
        with service:
            return service.get_user_delegation_key(now - CLOCK_SKEW, ends_at), ends_at
    except AzureError as err:
        raise _key_error(err, url) from err


def _key_error(error: AzureError, url: str) -> StoreError:
    code = getattr(error, "error_code", None)
    text = " ".join(str(error).split())[:_TEXT_LENGTH_MAX]
    what = f"user delegation key for {url}: {text}"
    if getattr(error, "status_code", None) == 403 and code not in CODES.bad_credentials:
        return AccessDenied(
            f"{what} (give the application a role with generateUserDelegationKey on the account, such "
            "as Storage Blob Data Contributor)"
        )
    return StoreUnavailable(what)


def _sign_ad(
    place: AdContainer, url: str, keys: Renewed[UserDelegationKey], key: str, ttl_s: float
) -> str:
    from azure.storage.blob import BlobSasPermissions, generate_blob_sas  # noqa: PLC0415  an extra

    endpoint = endpoint_of(os.environ, place.account, url)
    signing, ends_at = keys.current()
    now = SystemClock().now()
    signature = generate_blob_sas(
        place.account,
        place.container,
        key,
        user_delegation_key=signing,
        permission=BlobSasPermissions(read=True),
        start=now - CLOCK_SKEW,
        expiry=min(now + timedelta(seconds=ttl_s), ends_at),
    )
    return blob_url(endpoint, place.container, key, signature)
