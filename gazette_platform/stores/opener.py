"""From the URL of a store to its driver."""

from __future__ import annotations

import functools
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gazette_platform.errors import StoreError
from gazette_platform.protocol import StoreUrl, parse_store_url
from gazette_platform.stores.fs import FileStore
from gazette_platform.stores.webhdfs import WebHdfsStore

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_platform.stores.interface import FragmentStore

__all__ = [
    "azure_ad_executor",
    "file_executor",
    "gcs_executor",
    "object_executor",
    "open_store",
]

# A disk or network file system serves a few calls at once well; more only queue in the kernel.
_FILE_THREADS_MAX = 8
# They read settings, and spools that obstore sends from threads of its own.
_OBJECT_THREADS_MAX = 4
# Each waits for one answer of GCS. Four can be busy with large uploads; the rest serve what is short.
_GCS_THREADS_MAX = 16
# They read spools, too, but may also wait for tokens of an authority that does not answer, which must
# not hold up the stores of others.
_AZURE_AD_THREADS_MAX = 4


@functools.cache
def file_executor() -> ThreadPoolExecutor:
    """The threads in which all file stores of this process do their blocking calls."""
    return ThreadPoolExecutor(_FILE_THREADS_MAX, thread_name_prefix="gazette-file-store")


@functools.cache
def object_executor() -> ThreadPoolExecutor:
    """The threads in which all object stores of this process read what lies on this machine."""
    return ThreadPoolExecutor(_OBJECT_THREADS_MAX, thread_name_prefix="gazette-object-store")


@functools.cache
def gcs_executor() -> ThreadPoolExecutor:
    """The threads in which all ``gs`` stores of this process do their blocking calls."""
    return ThreadPoolExecutor(_GCS_THREADS_MAX, thread_name_prefix="gazette-gcs-store")


@functools.cache
def azure_ad_executor() -> ThreadPoolExecutor:
    """The threads in which all ``azure-ad`` stores of this process do what `object_executor` is for."""
    return ThreadPoolExecutor(_AZURE_AD_THREADS_MAX, thread_name_prefix="gazette-azure-ad-store")


def open_store(
    url: str, *, file_root: Path | None, file_only: bool = False, makes_folder: bool = True
) -> FragmentStore:
    """The store of a URL. Does no I/O: its health checks show whether the store works.

    Args:
        file_root: directory below which ``file`` stores lie; None refuses them.
        file_only: every URL, of whatever scheme, means the file root itself.
        makes_folder: whether a ``file`` store makes its own folder, below the root, with what it
            puts there; else it must exist.

    Raises: ValidationError: the URL or its arguments are wrong.
            StoreError: this process cannot serve its scheme.
    """
    parsed = parse_store_url(url)
    if file_only:
        parsed = StoreUrl(scheme="file", host="", path="/", args={}, text=url)
    if parsed.scheme == "hdfs":
        return WebHdfsStore(parsed)
    if parsed.scheme == "s3":
        return _open_s3(parsed)
    if parsed.scheme == "azure":
        return _open_azure(parsed)
    if parsed.scheme == "azure-ad":
        return _open_azure_ad(parsed)
    if parsed.scheme == "gs":
        return _open_gcs(parsed)
    if file_root is None:
        raise StoreError(
            f"fragment store {url} needs a directory (give its root: --broker.file-root of brokers, --file-root of gazctl)"
        )
    return FileStore(
        parsed, file_root=file_root, executor=file_executor(), makes_folder=makes_folder
    )


def _open_s3(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "botocore", extra="s3")
    from gazette_platform.stores.s3 import open_s3  # noqa: PLC0415  slow to import

    return open_s3(url, object_executor())


def _open_azure(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "azure.storage.blob", extra="azure")
    from gazette_platform.stores.azure import open_azure  # noqa: PLC0415  slow to import

    return open_azure(url, object_executor())


def _open_azure_ad(url: StoreUrl) -> FragmentStore:
    _require(url, "obstore", "azure.storage.blob", extra="azure")
    from gazette_platform.stores.azure_ad import open_azure_ad  # noqa: PLC0415  slow to import

    return open_azure_ad(url, azure_ad_executor())


def _open_gcs(url: StoreUrl) -> FragmentStore:
    _require(url, "google.cloud.storage", extra="gcs")
    from gazette_platform.stores.gcs import GcsStore  # noqa: PLC0415  as the others

    return GcsStore(url, gcs_executor())


def _require(url: StoreUrl, *packages: str, extra: str) -> None:
    missing = [name for name in packages if not _is_installed(name)]
    if missing:
        raise StoreError(
            f"fragment store {url.text} needs the package {' and '.join(missing)} "
            f"(install the extra: pip install 'gazette-platform[{extra}]')"
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that would hold it
        return False
