"""Options of commands of `gazctl`: which brokers to talk to, and how to log."""

import asyncio
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, TypeVar

import typer
from typer.core import TyperGroup
from typing_extensions import override

from gazette_platform.cli.commands import lazy_group, with_parameters
from gazette_platform.cli.gazctl.arguments import Selection, ShardSelection, seconds_of
from gazette_platform.cli.program import set_up_logging
from gazette_platform.client import AsyncClient, ClientConfig, JournalListing, ListSnapshot
from gazette_platform.errors import ValidationError
from gazette_platform.ops import platforms

if TYPE_CHECKING:
    from gazette_platform.consumer.client import ShardClient, ShardListing

T = TypeVar("T")

EPILOG: Final = (
    "You may also give options of the connection after the command, in environment variables, or "
    "in gazctl.ini, in the current folder or ~/.config/gazette."
)


class CommonOptionsGroup(TyperGroup):
    """A group whose own options may also be given after the name of the command.

    Gazette's programs take them anywhere, and scripts rely on it.
    """

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Move the group's options to the front, and parse."""
        known = {option for param in self.params for option in param.opts}
        shared = {f"--{name}" for name in (*CONNECTION_VARIABLES, *CONSUMER_VARIABLES)}
        names = {option for option in known if option in shared or option.startswith("--kafka.")}
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


def noun(
    name: str,
    connect: Callable[..., None],
    package: str,
    verbs: Mapping[str, str],
    *,
    help_text: str,
) -> typer.Typer:
    """The group of a noun.

    Args:
        name: of the group.
        connect: takes the options that all its verbs have.
        package: that has the verbs.
        verbs: as of `lazy_group`.
        help_text: one line.
    """
    app = typer.Typer(
        name=name,
        cls=lazy_group(package, verbs, CommonOptionsGroup),
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        help=help_text,
        epilog=EPILOG,
    )
    app.callback()(connect)
    return app


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """The brokers to call, by the options."""

    client: ClientConfig
    has_route_cache: bool
    """A route cache was asked for: then fragments are read from their stores too."""
    consumer: ClientConfig | None = None
    """Of commands that ask consumers as well."""


def _variable(option: str) -> str:
    return re.sub("[.-]", "_", option).upper()


def _option(name: str, text: str, default: Any = "", **more: Any) -> inspect.Parameter:
    """An option, as a parameter of `connect`.

    Args:
        name: in full, as ``broker.address``.
        text: its help.
        default: of its type.
        more: of `typer.Option`.
    """
    declared = typer.Option(f"--{name}", envvar=_variable(name), help=text, **more)
    return inspect.Parameter(
        _variable(name).lower().removeprefix("broker_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[type(default), declared],
    )


def _peer_options(
    group: str, address: str, default: str, cached: str
) -> dict[str, inspect.Parameter]:
    """Options of how to reach brokers or consumers, by name.

    Args:
        group: ``broker`` or ``consumer``.
        address: help of the address.
        default: address.
        cached: help of how much is cached.
    """
    trusted = "PEM roots to trust instead of the system's."
    token = "Bearer token to send instead of signing."  # noqa: S105  its help
    found: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "address": (address, default, {}),
        "cert-file": ("PEM client certificate.", "", {}),
        "cert-key-file": ("PEM key of that certificate.", "", {}),
        "trusted-ca-file": (trusted, "", {}),
        "auth-keys": ("Base64 keys; the first one signs calls.", "", {"show_default": False}),
        "auth-token": (token, "", {"show_default": False}),
        "cache.size": (cached, 0, {"min": 0}),
        "cache.ttl": ("How long to cache a route, as 1m30s.", "1m", {}),
    }
    return {
        f"{group}.{name}": _option(f"{group}.{name}", text, fallback, **more)
        for name, (text, fallback, more) in found.items()
    }


_OF_PROCESS: Final = {
    "zone": _option("zone", "Zone of this process.", "local"),
    "log.level": _option("log.level", "trace, debug, info, warn, error or fatal.", "warn"),
    "log.format": _option("log.format", "json, text or color.", "text"),
}
_OF_BROKERS: Final = _peer_options(
    "broker",
    "Endpoint URL of any broker, or of several, separated by commas, to try in turn. If you set none, "
    "that of the running platform.",
    platforms.DEFAULT_BROKER,
    "Number of journals whose brokers are called directly; 0 lets brokers proxy.",
)
_OF_CONSUMERS: Final = _peer_options(
    "consumer",
    "Endpoint URL of any process of the group, or of several, separated by commas, to try in turn.",
    "http://localhost:8080",
    "Number of shards whose primaries are called directly; 0 lets processes proxy.",
)

CONNECTION_VARIABLES: Final = {name: _variable(name) for name in (*_OF_PROCESS, *_OF_BROKERS)}
"""Environment variables of the options, for INI files."""

CONSUMER_VARIABLES: Final = {name: _variable(name) for name in _OF_CONSUMERS}
"""Those of commands that ask consumers as well."""

FileRoot = Annotated[
    Path | None,
    typer.Option(
        "--file-root",
        envvar="BROKER_FILE_ROOT",
        help="Folder that roots file:// stores, as for the brokers.",
    ),
]


def _connecting(*options: Mapping[str, inspect.Parameter]) -> Callable[..., None]:
    """Return a callback of a group, with these options, that has the group's commands find a `Connection`."""

    def connect(ctx: typer.Context, **values: Any) -> None:
        set_up_logging(values["log_level"], values["log_format"])
        values["address"] = broker_address(ctx, values["address"])
        fields = [option.name for option in _OF_BROKERS.values()]
        zone, consumer = values["zone"], None
        client = config_of("broker", zone, {name: values[name] for name in fields})
        if "consumer_address" in values:
            of_consumer = {name: values[f"consumer_{name}"] for name in fields}
            consumer = config_of("consumer", zone, of_consumer)
        has_route_cache = values["cache_size"] > 0
        ctx.obj = Connection(client=client, has_route_cache=has_route_cache, consumer=consumer)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("ctx", kind, annotation=typer.Context)]
    parameters += [option for some in options for option in some.values()]
    return with_parameters(connect, parameters)


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


def config_of(group: str, zone: str, values: Mapping[str, Any]) -> ClientConfig:
    """Return the config from the options of a group.

    Args:
        group: ``broker`` or ``consumer``.
        zone: of this process.
        values: by option without its group, as ``cert_file``.

    Raises: ValidationError: names the option.
    """
    _check_files(group, values)
    token = values["auth_token"]
    if not token.isprintable() or not token.isascii():
        raise ValidationError(
            "has characters that no header may have, such as a line break; give the bare token",
            path=f"--{group}.auth-token",
        )
    fields = {name: value for name, value in values.items() if not name.startswith("cache_")}
    fields["route_cache_ttl_s"] = seconds_of(values["cache_ttl"], f"--{group}.cache.ttl")
    try:
        return ClientConfig(zone=zone, route_cache_size=values["cache_size"], **fields)
    except ValidationError as err:
        option = _OPTIONS.get(err.path, err.path.replace("_", "-"))
        raise ValidationError(err.message, path=f"--{group}.{option}") from err


connect: Final = _connecting(_OF_PROCESS, _OF_BROKERS)
"""The callback of groups that ask brokers."""

connect_shards: Final = _connecting(_OF_PROCESS, _OF_CONSUMERS, _OF_BROKERS)
"""The callback of groups that ask consumers as well."""


def _check_files(group: str, values: Mapping[str, Any]) -> None:
    """Raises: ValidationError: a file is missing, or a certificate without its key."""
    for name in ("cert-file", "cert-key-file", "trusted-ca-file"):
        if file := values[name.replace("-", "_")]:
            with opened(file, f"--{group}.{name}"):
                pass
    if bool(values["cert_file"]) != bool(values["cert_key_file"]):
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
    """Run `work` with a client of the brokers in the options, on an event loop of its own."""
    config = _brokers(ctx, file_root)

    async def run() -> T:
        async with AsyncClient(config) as client:
            return await work(client)

    return asyncio.run(run())


def connected_shards(
    ctx: typer.Context,
    work: "Callable[[ShardClient, AsyncClient], Awaitable[T]]",
    *,
    file_root: Path | None = None,
) -> T:
    """Run `work` with clients of the consumers and the brokers in the options, on an event loop of its own.

    No connection is opened to either before it is asked.
    """
    from gazette_platform.consumer.client import ShardClient  # noqa: PLC0415  slow to import

    consumer, config = _connection(ctx).consumer, _brokers(ctx, file_root)

    async def run() -> T:
        async with ShardClient(consumer) as shards, AsyncClient(config) as client:
            return await work(shards, client)

    return asyncio.run(run())


def _connection(ctx: typer.Context) -> Connection:
    found = ctx.find_object(Connection)
    assert found is not None  # the group's callback has made it
    return found


def _brokers(ctx: typer.Context, file_root: Path | None) -> ClientConfig:
    """The brokers to call. Raises: ValidationError: there is no such `file_root`."""
    config = _connection(ctx).client
    if file_root is None:
        return config
    if not file_root.is_dir():
        raise ValidationError(f"is not a directory ({file_root})", path="--file-root")
    return replace(config, file_root=file_root)


async def matching(client: AsyncClient, selection: Selection) -> list[JournalListing]:
    """The journals that were asked for, by name.

    Raises: ValidationError: none does; a command that changes things then has nothing to do.
        JournalNotFound: one that was named is not there.
    """
    snapshot: ListSnapshot = await client.list_snapshot(selection.selector)
    selection.check(journal.name for journal in snapshot)
    return list(snapshot.journals)


async def matching_shards(client: "ShardClient", selection: ShardSelection) -> "list[ShardListing]":
    """The shards that were asked for, by ID.

    Raises: as `matching`, with ShardNotFound.
    """
    snapshot = await client.list(selection.selector)
    selection.check(each.id for each in snapshot)
    return list(snapshot.shards)
