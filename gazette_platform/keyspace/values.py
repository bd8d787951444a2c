"""Values of keys: protobuf messages, as Gazette's own brokers read and write them.

Reading checks everything: a value may come from any program that can reach etcd.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import BrokerSpec, JournalSpec, ProcessId, Route

__all__ = [
    "decode_broker_spec",
    "decode_journal_spec",
    "decode_route",
    "encode_broker_spec",
    "encode_journal_spec",
    "encode_member_spec",
    "encode_route",
]

if TYPE_CHECKING:
    from gazette_platform.keyspace.cluster_state import MemberSpec

# The generated modules stay near the wire (protocol, client, broker); here only their bytes pass.
_JOURNAL_SPEC = type(JournalSpec("name").to_pb())
_BROKER_SPEC = type(BrokerSpec(ProcessId("zone", "suffix"), "http://host").to_pb())
_ROUTE = type(Route().to_pb())

# Different routes that are remembered: more than a large cluster has, some MB at most.
_ROUTES_MAX = 4096


def encode_journal_spec(spec: JournalSpec) -> bytes:
    """The value of an item."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_journal_spec(raw: bytes, *, name: str) -> JournalSpec:
    """The journal of an item whose key says `name`.

    Raises: ValidationError: no such message, another name, or a broken rule.
    """
    spec = JournalSpec.from_pb(_parse(_JOURNAL_SPEC, raw))
    spec.validate()
    if spec.name != name:
        raise ValidationError(f"journal spec is of {spec.name!r}; the key says {name!r}")
    return spec


def encode_member_spec(spec: MemberSpec) -> bytes:
    """The value of a member, of whatever kind."""
    return spec.to_pb().SerializeToString(deterministic=True)


def encode_broker_spec(spec: BrokerSpec) -> bytes:
    """The value of a member."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_broker_spec(raw: bytes, *, process_id: ProcessId) -> BrokerSpec:
    """The broker of a member whose key says `process_id`.

    Raises: ValidationError: no such message, another id, or a broken rule.
    """
    spec = BrokerSpec.from_pb(_parse(_BROKER_SPEC, raw))
    spec.validate()
    if spec.id != process_id:
        raise ValidationError(f"broker spec is of {{{spec.id}}}; the key says {{{process_id}}}")
    return spec


def encode_route(route: Route) -> bytes:
    """The value of an assignment: members and primary, no endpoints."""
    return route.without_endpoints().to_pb().SerializeToString(deterministic=True)


@lru_cache(maxsize=_ROUTES_MAX)
def decode_route(raw: bytes) -> Route:
    """The route of an assignment; no value at all is a route without members and primary.

    All assignments of a journal have the same value, and journals share their brokers: the same
    bytes give the same object.

    Raises: ValidationError: no such message, or a broken rule.
    """
    if not raw:
        return Route()
    route = Route.from_pb(_parse(_ROUTE, raw))
    route.validate()
    return route


def _parse(message_class: Any, raw: bytes) -> Any:
    try:
        return message_class.FromString(raw)
    except DecodeError as err:
        name = message_class.DESCRIPTOR.name
        raise ValidationError(f"{len(raw)} bytes are no {name}: {err}") from err
