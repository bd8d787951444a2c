"""Options of an application's `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_platform.cli.connection import config_of
from gazette_platform.cli.option_table import ProcessOption, option_text, settings_of
from gazette_platform.cli.server_options import ServerOptions
from gazette_platform.client import ClientConfig
from gazette_platform.consumer.process import ConsumerConfig
from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.consumer.application import Option

__all__ = ["application_values", "consumer_config", "consumer_options"]

_CONSUMER = ServerOptions(ConsumerConfig, "process")


def _broker(name: str, kind: type, text: str, field: str = "") -> ProcessOption:
    variable = "BROKER_" + name.replace("-", "_").replace(".", "_").upper()
    return ProcessOption(
        f"broker.{name}", variable, kind, field or name.replace("-", "_"), text, ClientConfig
    )


_OPTIONS = (
    *_CONSUMER.address(
        "Host that is bound, and advertised.",
        _CONSUMER.own("port", int, "TCP port of the gRPC service; 0 for any free one."),
    ),
    *_CONSUMER.security("other processes of the group", them="them"),
    _CONSUMER.own(
        "allow-origin", list, "Origin whose pages may use the HTTP port; * for all. Repeatable."
    ),
    _CONSUMER.own(
        "allow-host",
        list,
        "Host name by which the HTTP port may be asked for, beside those of --consumer.host, "
        "--consumer.advertise and the machine; * for any. Repeatable.",
    ),
    _CONSUMER.wire("serves the gRPC port"),
    _CONSUMER.own("limit", int, "Most shards that this process takes on."),
    _CONSUMER.own("max-hot-standbys", int, "Cap on the hot standbys of shards."),
    _CONSUMER.watch_delay(),
    _CONSUMER.recv_size(),
    _CONSUMER.drain_timeout(),
    _CONSUMER.own(
        "restart-failed",
        float,
        "After which a shard that failed here is started again, doubled each time. Default: not before "
        "somebody unassigns it, unless its failure may pass: it was fenced, or its database was away.",
        "restart_failed_s",
    ),
    _CONSUMER.own("directory", Path, "Folder of the files of shards, while they run here."),
    _CONSUMER.own(
        "hints-interval",
        float,
        "How often a shard keeps hints: whoever recovers it plays what was recorded since.",
        "hints_interval_s",
    ),
    _broker("address", str, "URL of a broker, or of several, with commas between."),
    _broker("cert-file", str, "PEM certificate to show to brokers."),
    _broker("cert-key-file", str, "PEM key of it."),
    _broker("trusted-ca-file", str, "PEM roots to trust of brokers, not the system's."),
    _broker("auth-keys", str, "Base64 keys of brokers: the first signs a token for each call."),
    _broker("auth-token", str, "Fixed bearer token for brokers."),
    _broker(
        "file-root", Path, "Folder that roots file:// stores, to read fragments from directly."
    ),
    _broker("cache.size", int, "Journals whose brokers are remembered.", "route_cache_size"),
    _broker("cache.ttl", float, "After which they are asked for anew.", "route_cache_ttl_s"),
    *_CONSUMER.etcd(),
    _CONSUMER.lease("Time after which etcd forgets a process that died, and others take over."),
    *_CONSUMER.log(),
)


_BROKER_TEXTS = (
    "address",
    "cert_file",
    "cert_key_file",
    "trusted_ca_file",
    "auth_keys",
    "auth_token",
)


def consumer_options(name: str, own: Iterable[Option] = ()) -> tuple[ProcessOption, ...]:
    """The options of an application.

    Args:
        name: of the application, for the default of its prefix in etcd.
        own: those that it alone has.
    """
    prefix = ProcessOption(
        "etcd.prefix",
        "ETCD_PREFIX",
        str,
        "",
        "Path under which the group keeps keys: one of its own for each deployment.",
        ConsumerConfig,
        f"/gazette/consumers/{name}",
    )
    return (*map(_own, own), *_OPTIONS, prefix)


def _own(option: Option) -> ProcessOption:
    return ProcessOption(
        option.name,
        option.variable,
        option.kind,
        "",
        option.help,
        ConsumerConfig,
        option_text(option.kind, option.default),
    )


def application_values(
    own: Iterable[Option], options: Iterable[ProcessOption], values: Mapping[str, Any]
) -> dict[str, Any]:
    """What `Application.configure` gets of the values of all options.

    Raises: ValidationError: a duration is malformed.
    """
    names = {option.name for option in own}
    found = {option.name: option for option in options if option.name in names}
    return {
        name: None if values[name] is None else option.parse(values[name])
        for name, option in found.items()
    }


def consumer_config(values: Mapping[str, Any]) -> ConsumerConfig:
    """The settings of a consumer process from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
    """
    own = settings_of(_OPTIONS, values, ConsumerConfig)
    file_root = values["broker.file-root"]
    if file_root and not Path(file_root).is_dir():
        raise ValidationError(f"{file_root} is not a directory", path="broker.file-root")
    broker = config_of(
        "broker",
        zone=values["consumer.zone"] or "-",  # whose own rule tells of it
        **{name: values[f"broker.{name.replace('_', '-')}"] or "" for name in _BROKER_TEXTS},
        cache_size=values["broker.cache.size"],
        cache_ttl=values["broker.cache.ttl"],
    )
    # A shard waits for brokers that are away, and goes on when they are back.
    client = replace(broker, retry_timeout_s=None, file_root=Path(file_root) if file_root else None)
    return ConsumerConfig(**own, broker=client, etcd_prefix=values["etcd.prefix"])
