"""`gazette serve-kafka`: a gateway for clients of Kafka in a process of its own, and its options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gazette_platform.cli.gazette.serve import KAFKA_OPTIONS, kafka_config
from gazette_platform.cli.options import ServerOptions, settings_of, with_options
from gazette_platform.cli.program import set_up_logging
from gazette_platform.kafka.config import GatewayConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

_GATEWAY = ServerOptions(GatewayConfig, "gateway", "brokers", "", them="them")
_PORT, *_OTHERS = KAFKA_OPTIONS

GATEWAY_OPTIONS = (
    replace(
        _PORT, help="TCP port for clients of Kafka, 0 for any free one.", fallback=9092, field=""
    ),
    *_OTHERS,
    *_GATEWAY.shared("zone", "http-host", "http-port"),
    *_GATEWAY.security(),
    _GATEWAY.own(
        "allow-host",
        list,
        "Host name that requests for schemas may carry, beside --kafka.host, --kafka.advertise and the names of the "
        "machine; * for any. Checked if neither tokens nor TLS are on. Repeatable.",
    ),
    _GATEWAY.of("broker.address", str, "URL of a broker, or of several, with commas between."),
    *_GATEWAY.etcd(),
    _GATEWAY.of("etcd.prefix", str, "Path under which the brokers keep keys."),
    _GATEWAY.lease("Time after which etcd forgets a gateway that died."),
    *_GATEWAY.log(),
)


def gateway_config(values: Mapping[str, Any]) -> GatewayConfig:
    """The settings of a gateway from the values of its options.

    Raises: ValidationError: a value is malformed, out of range, or names what does not exist.
        SetupError: the extra is missing.
    """
    kafka = kafka_config(values)
    assert kafka is not None  # there is a port
    return GatewayConfig(**settings_of(GATEWAY_OPTIONS, values, GatewayConfig), kafka=kafka)


def _serve(values: dict[str, Any]) -> None:
    """Run a gateway for clients of Kafka, without a broker, until SIGTERM or SIGINT.

    Brokers with **--kafka.port** need none. Use it to scale, place or restart the gateways apart from the brokers. Several
    gateways, and brokers with --kafka.port, form one Kafka cluster. It needs the extra kafka, and the etcd of the brokers.

    Options come from flags, else from gazette.ini (in ., or ~/.config/gazette), else from the environment.

    **Examples**

    gazette serve-kafka --broker.address http://broker-1:8080 --etcd.address http://etcd:2379 --kafka.store s3://bucket/topics/

    gazette serve-kafka --kafka.host 0.0.0.0 --kafka.advertise kafka-1.example --kafka.http-port 9099 --broker.address http://broker-1:8080,http://broker-2:8080
    """
    set_up_logging(values["log.level"], values["log.format"])
    config = gateway_config(values)
    from gazette_platform.kafka.process import run  # noqa: PLC0415  needs the extra

    run(config)


serve_kafka = with_options(GATEWAY_OPTIONS, _serve)
