"""The ``azure`` store: a container of Azure Blob Storage, by the shared key of its account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, urlencode

from gazette_platform.errors import StoreUnavailable
from gazette_platform.ops.clock import SystemClock
from gazette_platform.stores.listings import azure_page
from gazette_platform.stores.object_errors import ErrorCodes
from gazette_platform.stores.objects import (
    ObjectStore,
    Provider,
    client_options,
    retry_options,
)
from gazette_platform.stores.prefix import KeyRule, take_args

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from obstore.store import AzureStore

    from gazette_platform.protocol import StoreUrl

__all__ = ["CLOCK_SKEW", "CODES", "Account", "blob_url", "listing_url", "open_azure"]

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
