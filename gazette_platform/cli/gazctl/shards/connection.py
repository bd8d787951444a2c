"""Options of every `gazctl shards` command: which consumers and brokers to talk to, and which shards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeVar, final

import typer

from gazette_platform.cli.gazctl.connection import (
    BrokerAddress,
    BrokerAuthKeys,
    BrokerAuthToken,
    BrokerCacheSize,
    BrokerCacheTtl,
    BrokerCertFile,
    BrokerCertKeyFile,
    BrokerTrustedCaFile,
    Connection,
    LogFormat,
    LogLevel,
    Zone,
    broker_address,
    config_of,
    parse_selector,
)
from gazette_platform.cli.program import set_up_logging
from gazette_platform.client import AsyncClient
from gazette_platform.errors import ShardNotFound, ValidationError
from gazette_platform.ops.platforms import DEFAULT_BROKER
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from gazette_platform.consumer.client import ShardClient, ShardListing

T = TypeVar("T")

ShardSelector = Annotated[
    str | None,
    typer.Option(
        "-l",
        "--selector",
        metavar="SELECTOR",
        help="Labels of the shards, as in 'id in (shard-000, shard-001), env=dev, !private'.",
    ),
]
"""An empty selector is one, and matches all."""

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", show_default=False, help="Shards by their IDs, in place of a selector."
    ),
]


@final
@dataclass(frozen=True, slots=True)
class ShardSelection:
    """The shards that a command line asked for."""

    selector: LabelSelector
    text: str
    """As the user wrote it, for errors."""
    ids: tuple[str, ...] = ()
    """Shards that have to be there, each."""

    @classmethod
    def of(cls, ids: Sequence[str] | None, selector: str | None, *, is_needed: bool = True) -> Self:
        """What IDs and ``--selector`` say.

        Args:
            is_needed: whether saying neither is an error; else it means all shards.

        Raises: typer.BadParameter: both were given, or neither though it is needed.
            ValidationError: the selector cannot be parsed, or an ID is none.
        """
        if ids and selector is not None:
            raise typer.BadParameter("give IDs or --selector, and not both")
        if not ids:
            if selector is None and is_needed:
                raise typer.BadParameter("Missing option '--selector', or IDs of shards")
            return cls(parse_selector(selector or ""), selector or "")
        labels = LabelSet()
        for shard in sorted(set(ids)):
            labels = labels.with_added("id", shard)
        selected = LabelSelector(include=labels)
        selected.validate()
        return cls(selected, ", ".join(ids), tuple(ids))

    def check(self, found: Iterable[str]) -> None:
        """Check what was found for it.

        Raises: ShardNotFound: a shard that was named is not there. ValidationError: nothing is.
        """
        known = set(found)
        missing = [shard for shard in self.ids if shard not in known]
        if missing:
            raise ShardNotFound(journal=", ".join(missing))
        if not known:
            raise ValidationError(
                f"no shards match the selector ({self.text}); `gazctl shards list` shows the shards "
                "there are"
            )


def connect_shards(
    ctx: typer.Context,
    *,
    zone: Zone = "local",
    log_level: LogLevel = "warn",
    log_format: LogFormat = "text",
    consumer_address: Annotated[
        str,
        typer.Option(
            "--consumer.address",
            envvar="CONSUMER_ADDRESS",
            help="Endpoint URL of any process of the group; or of several, with commas, to try in turn.",
        ),
    ] = "http://localhost:8080",
    consumer_cert_file: Annotated[
        str,
        typer.Option(
            "--consumer.cert-file", envvar="CONSUMER_CERT_FILE", help="PEM client certificate."
        ),
    ] = "",
    consumer_cert_key_file: Annotated[
        str,
        typer.Option(
            "--consumer.cert-key-file", envvar="CONSUMER_CERT_KEY_FILE", help="PEM key of it."
        ),
    ] = "",
    consumer_trusted_ca_file: Annotated[
        str,
        typer.Option(
            "--consumer.trusted-ca-file",
            envvar="CONSUMER_TRUSTED_CA_FILE",
            help="PEM roots to trust instead of the system's.",
        ),
    ] = "",
    consumer_auth_keys: Annotated[
        str,
        typer.Option(
            "--consumer.auth-keys",
            envvar="CONSUMER_AUTH_KEYS",
            help="Base64 keys; the first one signs our calls.",
            show_default=False,
        ),
    ] = "",
    consumer_auth_token: Annotated[
        str,
        typer.Option(
            "--consumer.auth-token",
            envvar="CONSUMER_AUTH_TOKEN",
            help="Bearer token to send instead of signing.",
            show_default=False,
        ),
    ] = "",
    consumer_cache_size: Annotated[
        int,
        typer.Option(
            "--consumer.cache.size",
            envvar="CONSUMER_CACHE_SIZE",
            min=0,
            help="Shards whose primaries are dialed directly; 0 lets processes proxy.",
        ),
    ] = 0,
    consumer_cache_ttl: Annotated[
        str,
        typer.Option(
            "--consumer.cache.ttl",
            envvar="CONSUMER_CACHE_TTL",
            help="How long a route is believed, as in 1m30s.",
        ),
    ] = "1m",
    address: BrokerAddress = DEFAULT_BROKER,
    cert_file: BrokerCertFile = "",
    cert_key_file: BrokerCertKeyFile = "",
    trusted_ca_file: BrokerTrustedCaFile = "",
    auth_keys: BrokerAuthKeys = "",
    auth_token: BrokerAuthToken = "",
    cache_size: BrokerCacheSize = 0,
    cache_ttl: BrokerCacheTtl = "1m",
) -> None:
    """List, apply and unassign shards of consumers, and keep their recovery logs."""
    set_up_logging(log_level, log_format)
    broker = config_of(
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
    consumer = config_of(
        "consumer",
        address=consumer_address,
        zone=zone,
        cert_file=consumer_cert_file,
        cert_key_file=consumer_cert_key_file,
        trusted_ca_file=consumer_trusted_ca_file,
        auth_keys=consumer_auth_keys,
        auth_token=consumer_auth_token,
        cache_size=consumer_cache_size,
        cache_ttl=consumer_cache_ttl,
    )
    ctx.obj = Connection(client=broker, has_route_cache=cache_size > 0, consumer=consumer)


def connected_shards(
    ctx: typer.Context,
    work: "Callable[[ShardClient, AsyncClient], Awaitable[T]]",
    *,
    file_root: Path | None = None,
) -> T:
    """Run `work` with clients of the consumers and the brokers that options told.

    No connection is opened to either before it is asked. The event loop is one of its own.
    """
    from gazette_platform.consumer.client import ShardClient  # noqa: PLC0415  slow to import

    connection = ctx.find_object(Connection)
    assert connection is not None  # `connect_shards` has made it
    broker = connection.client
    if file_root is not None:
        if not file_root.is_dir():
            raise ValidationError(f"is not a directory ({file_root})", path="--file-root")
        broker = replace(broker, file_root=file_root)

    async def run() -> T:
        async with ShardClient(connection.consumer) as shards, AsyncClient(broker) as client:
            return await work(shards, client)

    return asyncio.run(run())


async def matching_shards(client: "ShardClient", selection: ShardSelection) -> "list[ShardListing]":
    """The shards that were asked for, by ID.

    Raises: ValidationError: there is none; a command that changes things then has nothing to do.
        ShardNotFound: one that was named is not there.
    """
    snapshot = await client.list(selection.selector)
    selection.check(each.id for each in snapshot)
    return list(snapshot.shards)
