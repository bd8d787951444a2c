"""JSON of specs, listings and claims, field by field as Gazette's tools write it.

Two dialects: *jsonpb* (listings: original field names, defaults included, 64-bit integers as text,
durations as ``"300s"``) and Go's plain ``encoding/json`` (fragments, claims: numbers as numbers,
zero fields left out). Functions return values that any JSON encoder takes; `escape_html` makes what
it writes the bytes that Go would write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gazette_platform.ops.durations import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.protocol.fragments import Fragment
    from gazette_platform.protocol.labels import LabelSet
    from gazette_platform.protocol.routing import Header, Route
    from gazette_platform.protocol.selectors import LabelSelector
    from gazette_platform.protocol.specs import FragmentSpec, JournalSpec

__all__ = [
    "duration_jsonpb",
    "escape_html",
    "fragment_json",
    "header_jsonpb",
    "journal_listing_jsonpb",
    "journal_spec_jsonpb",
    "list_response_jsonpb",
    "route_jsonpb",
    "selector_json",
]

Json: TypeAlias = "dict[str, Any]"


# What Go's encoders escape beside what JSON asks for: HTML, and two line ends of JavaScript.
_ESCAPES: Final = tuple(
    (character.encode(), b"\\u%04x" % ord(character)) for character in "<>&\u2028\u2029"
)


def escape_html(document: bytes) -> bytes:
    r"""The same JSON, in the bytes in which programs in Go write it.

    >>> escape_html(b'{"signed_url":"http://a/?b&c"}').decode()
    '{"signed_url":"http://a/?b\\u0026c"}'
    """
    for plain, escaped in _ESCAPES:
        if plain in document:  # within a text, for nowhere else has JSON these characters
            document = document.replace(plain, escaped)
    return document


def _labels_jsonpb(labels: LabelSet) -> Json:
    return {
        "labels": [
            {"name": label.name, "value": label.value, "prefix": label.prefix} for label in labels
        ]
    }


def duration_jsonpb(nanoseconds: int) -> str:
    """Seconds, with as many digits as needed of three, six or nine."""
    seconds, nanos = divmod(abs(nanoseconds), SECOND_NS)
    sign = "-" if nanoseconds < 0 else ""
    if not nanos:
        return f"{sign}{seconds}s"
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{sign}{seconds}.{digits}s"


def _fragment_spec_jsonpb(fragment: FragmentSpec) -> Json:
    return {
        "length": str(fragment.length),
        "compression_codec": fragment.codec.name,
        "stores": list(fragment.stores),
        "refresh_interval": duration_jsonpb(fragment.refresh_interval_ns),
        "retention": duration_jsonpb(fragment.retention_ns),
        "flush_interval": duration_jsonpb(fragment.flush_interval_ns),
        "path_postfix_template": fragment.path_postfix_template,
    }


def journal_spec_jsonpb(spec: JournalSpec) -> Json:
    """A journal's spec. Flags are a number, since the wire has a bit field."""
    suspend = None
    if spec.suspend is not None:
        suspend = {"level": spec.suspend.level.name, "offset": str(spec.suspend.offset)}
    return {
        "name": spec.name,
        "replication": spec.replication,
        "labels": _labels_jsonpb(spec.labels),
        "fragment": _fragment_spec_jsonpb(spec.fragment),
        "flags": int(spec.flags),
        "max_append_rate": str(spec.max_append_rate),
        "suspend": suspend,
    }


def route_jsonpb(route: Route) -> Json:
    """A route."""
    return {
        "members": [{"zone": zone, "suffix": suffix} for zone, suffix in route.members],
        "primary": route.primary,
        "endpoints": list(route.endpoints),
    }


def header_jsonpb(header: Header) -> Json:
    """A header."""
    zone, suffix = header.process_id or ("", "")
    return {
        "process_id": {"zone": zone, "suffix": suffix},
        "route": route_jsonpb(header.route),
        "etcd": {
            "cluster_id": str(header.etcd.cluster_id),
            "member_id": str(header.etcd.member_id),
            "revision": str(header.etcd.revision),
            "raft_term": str(header.etcd.raft_term),
        },
    }


def journal_listing_jsonpb(
    spec: JournalSpec, mod_revision: int, create_revision: int, route: Route
) -> Json:
    """One journal of a listing."""
    return {
        "spec": journal_spec_jsonpb(spec),
        "mod_revision": str(mod_revision),
        "route": route_jsonpb(route),
        "create_revision": str(create_revision),
    }


def list_response_jsonpb(header: Header, journals: Iterable[Json]) -> Json:
    """A whole listing with status OK, of journals by `journal_listing_jsonpb`."""
    return {"status": "OK", "header": header_jsonpb(header), "journals": list(journals)}


def fragment_json(fragment: Fragment, signed_url: str = "") -> Json:
    """One fragment of a listing, as a line of ``gazctl journals fragments -o json``."""
    part1, part2, part3 = (
        int.from_bytes(fragment.sum[:8], "big"),
        int.from_bytes(fragment.sum[8:16], "big"),
        int.from_bytes(fragment.sum[16:], "big"),
    )
    spec: Json = {
        "journal": fragment.journal,
        "begin": fragment.begin,
        "end": fragment.end,
        "sum": _without_zeros({"part1": part1, "part2": part2, "part3": part3}),
        "compression_codec": int(fragment.codec),
        "backing_store": fragment.backing_store,
        "mod_time": fragment.mod_time,
        "path_postfix": fragment.path_postfix,
    }
    # The digest is a struct, which Go writes even if it is zero.
    kept = {key: value for key, value in spec.items() if value or key == "sum"}
    return _without_zeros({"spec": kept, "signed_url": signed_url})


def _without_zeros(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value}


def selector_json(selector: LabelSelector) -> Json:
    """A selector as the claims of an authorization token hold it: of no labels, ``null``."""
    return {
        "include": {"labels": _labels_json(selector.include)},
        "exclude": {"labels": _labels_json(selector.exclude)},
    }


def _labels_json(labels: LabelSet) -> list[Json] | None:
    if not labels:
        return None
    return [_without_zeros(label._asdict()) for label in labels]
