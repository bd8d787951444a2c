"""Options of commands of `gazctl`: which brokers to talk to, and how to log."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal, TypeVar

import typer
from typer.core import TyperGroup
from typing_extensions import override

from gazette_platform.cli.instants import UNIX_TIME_MAX, seconds_of
from gazette_platform.cli.logs import set_up_logging
from gazette_platform.cli.selection import Selection, Selector, no_match, parse_selector
from gazette_platform.client import AsyncClient, ClientConfig, JournalListing, ListSnapshot
from gazette_platform.errors import ValidationError
from gazette_platform.ops import platforms

__all__ = [
    "CONNECTION_VARIABLES",
    "CONSUMER_VARIABLES",
    "UNIX_TIME_MAX",
    "BrokerAddress",
    "BrokerAuthKeys",
    "BrokerAuthToken",
    "BrokerCacheSize",
    "BrokerCacheTtl",
    "BrokerCertFile",
    "BrokerCertKeyFile",
    "BrokerTrustedCaFile",
    "CommonOptionsGroup",
    "Connection",
    "LogFormat",
    "LogLevel",
    "Selector",
    "Zone",
    "broker_address",
    "config_of",
    "connect",
    "connected",
    "matching",
    "no_match",
    "opened",
    "parse_selector",
]

T = TypeVar("T")

CONNECTION_VARIABLES = {
    "zone": "ZONE",
    "log.level": "LOG_LEVEL",
    "log.format": "LOG_FORMAT",
    "broker.address": "BROKER_ADDRESS",
    "broker.cert-file": "BROKER_CERT_FILE",
    "broker.cert-key-file": "BROKER_CERT_KEY_FILE",
    "broker.trusted-ca-file": "BROKER_TRUSTED_CA_FILE",
    "broker.auth-keys": "BROKER_AUTH_KEYS",
    "broker.auth-token": "BROKER_AUTH_TOKEN",
    "broker.cache.size": "BROKER_CACHE_SIZE",
    "broker.cache.ttl": "BROKER_CACHE_TTL",
}
"""Environment variables of the options, for INI files."""

CONSUMER_VARIABLES = {
    option.replace("broker.", "consumer."): variable.replace("BROKER_", "CONSUMER_")
    for option, variable in CONNECTION_VARIABLES.items()
    if option.startswith("broker.")
}
"""Those of commands that ask consumers as well."""


class CommonOptionsGroup(TyperGroup):
    """A group whose own options may also be given after the name of the command.

    Gazette's programs take them anywhere, and scripts rely on it.
    """

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Move the group's options to the front, and parse."""
        known = {option for param in self.params for option in param.opts}
        names = known & {f"--{name}" for name in (*CONNECTION_VARIABLES, *CONSUMER_VARIABLES)}
        front: list[str] = []
        back: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                back += [arg, *rest]
                break
            name, equals, _ = arg.partition("=")
            if name not in names:
                back.append(arg)
            else:
                front.append(arg)
                if not equals:
                    front += [value for value in (next(rest, None),) if value is not None]
        return super().parse_args(ctx, front + back)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """The brokers to talk to, as options told."""

    client: ClientConfig
    has_route_cache: bool
    """A route cache was asked for: then fragments are read from their stores too."""
    consumer: ClientConfig | None = None
    """Of commands that ask consumers as well."""


Zone = Annotated[str, typer.Option("--zone", envvar="ZONE", help="Zone of this process.")]
LogLevel = Annotated[
    str,
    typer.Option(
        "--log.level", envvar="LOG_LEVEL", help="trace, debug, info, warn, error or fatal."
    ),
]
LogFormat = Annotated[
    str, typer.Option("--log.format", envvar="LOG_FORMAT", help="json, text or color.")
]
BrokerAddress = Annotated[
    str,
    typer.Option(
        "--broker.address",
        envvar="BROKER_ADDRESS",
        help="Endpoint URL of any broker, or of several, separated by commas, to try in turn. If you set none, "
        "that of the running platform.",
    ),
]
FileRoot = Annotated[
    Path | None,
    typer.Option(
        "--file-root",
        envvar="BROKER_FILE_ROOT",
        help="Folder that roots file:// stores, as for the brokers.",
    ),
]
BrokerCertFile = Annotated[
    str,
    typer.Option("--broker.cert-file", envvar="BROKER_CERT_FILE", help="PEM client certificate."),
]
BrokerCertKeyFile = Annotated[
    str,
    typer.Option(
        "--broker.cert-key-file", envvar="BROKER_CERT_KEY_FILE", help="PEM key of that certificate."
    ),
]
BrokerTrustedCaFile = Annotated[
    str,
    typer.Option(
        "--broker.trusted-ca-file",
        envvar="BROKER_TRUSTED_CA_FILE",
        help="PEM roots to trust instead of the system's.",
    ),
]
BrokerAuthKeys = Annotated[
    str,
    typer.Option(
        "--broker.auth-keys",
        envvar="BROKER_AUTH_KEYS",
        help="Base64 keys; the first one signs calls.",
        show_default=False,
    ),
]
BrokerAuthToken = Annotated[
    str,
    typer.Option(
        "--broker.auth-token",
        envvar="BROKER_AUTH_TOKEN",
        help="Bearer token to send instead of signing.",
        show_default=False,
    ),
]
BrokerCacheSize = Annotated[
    int,
    typer.Option(
        "--broker.cache.size",
        envvar="BROKER_CACHE_SIZE",
        min=0,
        help="Number of journals whose brokers are called directly; 0 lets brokers proxy.",
    ),
]
BrokerCacheTtl = Annotated[
    str,
    typer.Option(
        "--broker.cache.ttl",
        envvar="BROKER_CACHE_TTL",
        help="How long to cache a route, as 1m30s.",
    ),
]


def connect(
    ctx: typer.Context,
    *,
    zone: Zone = "local",
    log_level: LogLevel = "warn",
    log_format: LogFormat = "text",
    address: BrokerAddress = platforms.DEFAULT_BROKER,
    cert_file: BrokerCertFile = "",
    cert_key_file: BrokerCertKeyFile = "",
    trusted_ca_file: BrokerTrustedCaFile = "",
    auth_keys: BrokerAuthKeys = "",
    auth_token: BrokerAuthToken = "",
    cache_size: BrokerCacheSize = 0,
    cache_ttl: BrokerCacheTtl = "1m",
) -> None:
    """Create, list, append to and read journals, and keep their fragments."""
    set_up_logging(log_level, log_format)
    config = config_of(
        "broker",
        address=broker_address(ctx, address),
        zone=zone,
        cert_file=cert_file,
        cert_key_file=cert_key_file,
        trusted_ca_file=trusted_ca_file,
        auth_keys=auth_keys,
        auth_token=auth_token,
        cache_size=cache_size,
        cache_ttl=cache_ttl,
    )
    ctx.obj = Connection(client=config, has_route_cache=cache_size > 0)


def broker_address(ctx: typer.Context, address: str) -> str:
    """The broker of a command: of `--broker.address`, else of the platform in the environment, or of the one that runs.

    The variables of a platform that runs become this process's, as if its shell had evaluated `gazette env`.
    """
    source = ctx.get_parameter_source("address")
    if source is not None and source.name != "DEFAULT":
        return address
    os.environ.update(platforms.adopted(os.environ))
    return platforms.broker_of(os.environ) or address


# Options whose field has another name.
_OPTIONS: Final = {"route_cache_size": "cache.size", "route_cache_ttl_s": "cache.ttl"}


def config_of(
    group: str,
    *,
    address: str,
    zone: str,
    cert_file: str,
    cert_key_file: str,
    trusted_ca_file: str,
    auth_keys: str,
    auth_token: str,
    cache_size: int,
    cache_ttl: str,
) -> ClientConfig:
    """The config that the options of a group told, which is ``broker`` or ``consumer``.

    Raises: ValidationError: names the option.
    """
    _check_files(group, cert_file, cert_key_file, trusted_ca_file)
    if not auth_token.isprintable() or not auth_token.isascii():
        raise ValidationError(
            "has characters that no header may have, such as a line break; give the bare token",
            path=f"--{group}.auth-token",
        )
    ttl_s = seconds_of(cache_ttl, f"--{group}.cache.ttl")
    try:
        return ClientConfig(
            address=address,
            zone=zone,
            route_cache_size=cache_size,
            route_cache_ttl_s=ttl_s,
            cert_file=cert_file,
            cert_key_file=cert_key_file,
            trusted_ca_file=trusted_ca_file,
            auth_keys=auth_keys,
            auth_token=auth_token,
        )
    except ValidationError as err:
        option = _OPTIONS.get(err.path, err.path.replace("_", "-"))
        raise ValidationError(err.message, path=f"--{group}.{option}") from err


def _check_files(group: str, cert_file: str, cert_key_file: str, trusted_ca_file: str) -> None:
    """Raises: ValidationError: a file is missing, or a certificate without its key."""
    files = {
        f"--{group}.cert-file": cert_file,
        f"--{group}.cert-key-file": cert_key_file,
        f"--{group}.trusted-ca-file": trusted_ca_file,
    }
    for option, file in files.items():
        if file:
            with opened(file, option):
                pass
    if bool(cert_file) != bool(cert_key_file):
        raise ValidationError(
            "go together; give both, or neither",
            path=f"--{group}.cert-file, --{group}.cert-key-file",
        )


def opened(file: str | Path, option: str, mode: Literal["rb", "wb"] = "rb") -> BinaryIO:
    """Open the file that `option` names.

    Raises: ValidationError: it cannot be opened; says which, and why.
    """
    try:
        return Path(file).open(mode)
    except OSError as err:
        verb = "read" if mode == "rb" else "write"
        raise ValidationError(f"cannot {verb} {file}: {err.strerror}", path=option) from err


def connected(
    ctx: typer.Context,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    file_root: Path | None = None,
) -> T:
    """Run `work` with a client of the brokers that options told, on an event loop of its own."""
    config: ClientConfig = ctx.find_object(Connection).client  # type: ignore[union-attr]
    if file_root is not None:
        if not file_root.is_dir():
            raise ValidationError(f"is not a directory ({file_root})", path="--file-root")
        config = replace(config, file_root=file_root)

    async def run() -> T:
        async with AsyncClient(config) as client:
            return await work(client)

    return asyncio.run(run())


async def matching(client: AsyncClient, selection: Selection | str) -> list[JournalListing]:
    """The journals that were asked for, by name; of a text, those that match the selector.

    Raises: ValidationError: none does; a command that changes things then has nothing to do.
        JournalNotFound: one that was named is not there.
    """
    if isinstance(selection, str):
        selection = Selection(parse_selector(selection), selection)
    snapshot: ListSnapshot = await client.list_snapshot(selection.selector)
    selection.check(journal.name for journal in snapshot)
    return list(snapshot.journals)
