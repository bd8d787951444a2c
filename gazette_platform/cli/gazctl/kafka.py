"""`gazctl kafka`: what clients of Kafka do at the gateways: groups, transactions, and a doctor."""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from gazette_platform.cli.commands import documented
from gazette_platform.cli.gazctl.arguments import TableOrJson
from gazette_platform.cli.gazctl.connection import CommonOptionsGroup, opened
from gazette_platform.cli.gazctl.kafka_topics import app as topics
from gazette_platform.cli.output import NONE, print_json, print_table, print_text
from gazette_platform.cli.program import EXIT_FAILED, set_up_logging
from gazette_platform.errors import ValidationError
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.kafka.inspection import Cluster, GroupDetails

T = TypeVar("T")

_PORT_MAX: Final = 65535
_Output = Annotated[TableOrJson, typer.Option("-o", "--format", help="Output format.")]


@dataclass(frozen=True, slots=True)
class _Door:
    """The gateway to ask, by the options."""

    host: str
    port: int
    token: str
    tls: ssl.SSLContext | None


app = typer.Typer(
    name="kafka",
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Look at topics, consumer groups and transactions of Kafka's clients, and find what keeps clients from working.",
)


app.add_typer(topics)


def _option(name: str, text: str, **more: Any) -> Any:
    variable = name.replace(".", "_").replace("-", "_").upper()
    return typer.Option(f"--{name}", envvar=variable, help=text, **more)


@app.callback()
def _connect(
    ctx: typer.Context,
    *,
    address: Annotated[
        str,
        _option(
            "kafka.address",
            "Kafka port of any gateway. If you set none, that of the running platform.",
            metavar="HOST:PORT",
        ),
    ] = "localhost:9092",
    token: Annotated[
        str,
        _option("kafka.auth-token", "Token to log in with, as of SASL/PLAIN.", show_default=False),
    ] = "",
    security: Annotated[
        Literal["plain", "tls"], _option("kafka.security", "How to connect: plain or tls.")
    ] = "plain",
    trusted_ca_file: Annotated[
        str,
        _option(
            "kafka.trusted-ca-file",
            "PEM roots to trust instead of the system's; implies tls.",
        ),
    ] = "",
    level: Annotated[
        str, _option("log.level", "trace, debug, info, warn, error or fatal.")
    ] = "warn",
) -> None:
    """Look at topics, consumer groups and transactions of Kafka's clients, and find what keeps clients from working."""
    set_up_logging(level, "text")
    if ctx.invoked_subcommand == topics.info.name:
        return  # which asks brokers
    source = ctx.get_parameter_source("address")
    if source is None or source.name == "DEFAULT":
        address = platforms.adopted(os.environ).get("KAFKA_ADDRESS", address)
    required("kio", extra="kafka", by="commands of gazctl kafka")
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise ValidationError(f"expected HOST:PORT, got {address!r}", path="--kafka.address")
    context: ssl.SSLContext | None = None
    if trusted_ca_file:
        with opened(trusted_ca_file, "--kafka.trusted-ca-file"):
            pass
    if security == "tls" or trusted_ca_file:
        context = ssl.create_default_context(cafile=trusted_ca_file or None)
    ctx.obj = _Door(host.strip("[]"), int(port), token, context)


def _ask(ctx: typer.Context, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with the cluster of the options, on an event loop of its own."""
    from gazette_platform.kafka.inspection import Cluster  # noqa: PLC0415  needs the extra

    door = ctx.find_object(_Door)
    assert door is not None  # the group's callback has made it

    async def run() -> T:
        async with Cluster(door.host, door.port, door.tls, door.token) as cluster:
            return await work(cluster)

    return asyncio.run(run())


@app.command()
@documented
def groups(ctx: typer.Context, group: str = "", *, output: _Output = "table") -> None:
    """List consumer groups; or show the members, offsets and lag of one.

    Offsets are bytes of journals, and so is lag: what the group has not read yet.

    **Example**

    gazctl kafka groups billing --kafka.address broker-1:9092

    Options:
        GROUP: Name of the group to show; default: list all.
    """
    if group:
        details = _ask(ctx, lambda cluster: cluster.group(group))
        _print_group(details, output)
        return
    found = _ask(ctx, lambda cluster: cluster.groups())
    if output == "json":
        for one in found:
            print_json(one._asdict())
        return
    rows = [(one.group_id, one.state, one.protocol_type or NONE, str(one.node)) for one in found]
    print_table(("Group", "State", "Type", "Node"), rows)


def _print_group(details: GroupDetails, output: str) -> None:
    summary = details.summary
    if output == "json":
        parts = [one._asdict() | {"lag": one.lag} for one in details.partitions]
        more: dict[str, Any] = {"protocol": details.protocol, "members": details.members}
        print_json(summary._asdict() | more | {"partitions": parts}, indent=True)
        return
    members = "1 member" if details.members == 1 else f"{details.members} members"
    print_text(f"{summary.group_id}: {summary.state}, {members}, node {summary.node}")
    rows = [
        (
            one.topic,
            str(one.partition),
            NONE if one.committed < 0 else str(one.committed),
            NONE if one.end < 0 else str(one.end),
            NONE if one.lag is None else str(one.lag),
            one.member or NONE,
            one.host or NONE,
        )
        for one in details.partitions
    ]
    print_table(("Topic", "Partition", "Committed", "End", "Lag", "Member", "Host"), rows)


@app.command()
def transactions(ctx: typer.Context, *, output: _Output = "table") -> None:
    """List transactional ids of producers, with the partitions of open transactions.

    **Example**

    gazctl kafka transactions
    """
    found = _ask(ctx, lambda cluster: cluster.transactions())
    if output == "json":
        for one in found:
            began = one.began.isoformat() if one.began else None
            more = {"began": began, "timeout": one.timeout.total_seconds()}
            print_json(one._asdict() | more)
        return
    rows = [
        (
            one.transactional_id,
            one.state,
            str(one.producer_id),
            str(one.epoch),
            one.began.isoformat(timespec="seconds") if one.began else NONE,
            " ".join(one.partitions) or NONE,
        )
        for one in found
    ]
    print_table(("Id", "State", "Producer", "Epoch", "Began", "Partitions"), rows)


@app.command()
def doctor(ctx: typer.Context, *, output: _Output = "table") -> None:
    """Look for what keeps clients of Kafka from working. Exits with 1 if it finds an error.

    It asks each gateway at the address that clients are sent to, and looks at topics, groups and transactions.

    **Example**

    gazctl kafka doctor --kafka.address broker-1:9092
    """
    now = SystemClock().now()
    found = _ask(ctx, lambda cluster: cluster.findings(now=now))
    if output == "json":
        for one in found:
            print_json(one._asdict())
    else:
        print_table(("Result", "Finding"), found)
    if any(one.level == "error" for one in found):
        raise typer.Exit(EXIT_FAILED)
