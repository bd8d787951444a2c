"""Trees of journals as the YAML that ``gazctl journals apply`` reads and ``list`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.ops.durations import format_duration
from gazette_platform.protocol.enums import CompressionCodec, JournalFlag, SuspendLevel
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSet
from gazette_platform.protocol.specs import FragmentSpec, JournalChange, JournalSpec, SuspendSpec
from gazette_platform.yaml_specs.go_yaml import dump_yaml
from gazette_platform.yaml_specs.journal_tree import JournalNode, hoist, tree_of
from gazette_platform.yaml_specs.strict_yaml import StrictMapping, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "parse_journal_node",
    "parse_journal_tree",
    "render_journal_node",
    "to_journal_tree",
]

# Deeper than the segments of the longest journal name that anybody has.
_DEPTH_MAX = 64

_CODECS = {codec.name: codec.value for codec in CompressionCodec}
_FLAGS = {flag.name: flag.value for flag in JournalFlag}
_LEVELS = {level.name: level.value for level in SuspendLevel}


def parse_journal_tree(document: str | bytes) -> list[JournalChange]:
    """The changes that a YAML tree of journals asks for, in order of names.

    Raises: ValidationError: not YAML (with its line), an unknown key, a malformed tree, or a spec
        that is not valid once its parents' fields are pushed down.
    """
    return parse_journal_node(document).changes()


def to_journal_tree(journals: Iterable[tuple[JournalSpec, int]]) -> str:
    """The YAML of journals and their revisions, with what they share hoisted into directories.

    `parse_journal_tree` gives the same specs and revisions back. No journals make an empty mapping.
    """
    tree = tree_of(journals)
    return dump_yaml({}) if tree is None else render_journal_node(hoist(tree))


def parse_journal_node(document: str | bytes) -> JournalNode:
    """Read the tree of a YAML document; neither pushed down nor validated.

    Raises: ValidationError: not YAML, an unknown key, or a value of a wrong type.
    """
    return _read_node(read_yaml(document), 0)


def _read_node(mapping: StrictMapping, depth: int) -> JournalNode:
    if depth > _DEPTH_MAX:
        raise mapping.error(f"children are nested deeper than {_DEPTH_MAX} levels")
    node = JournalNode(
        comment=mapping.text("comment"),
        delete=mapping.boolean("delete"),
        spec=JournalSpec(
            name=mapping.text("name"),
            replication=mapping.integer("replication"),
            labels=_read_labels(mapping),
            fragment=_read_fragment(mapping.mapping("fragment")),
            flags=JournalFlag.from_wire(mapping.choice("flags", _FLAGS)),
            max_append_rate=mapping.integer("max_append_rate"),
            suspend=_read_suspend(mapping.mapping("suspend")),
        ),
        revision=mapping.integer("revision"),
        children=tuple(_read_node(child, depth + 1) for child in mapping.mappings("children")),
    )
    mapping.finish()
    return node


def _read_labels(mapping: StrictMapping) -> LabelSet:
    pairs: list[tuple[str, str]] = []
    for item in mapping.mappings("labels"):
        pair = (item.text("name"), item.text("value"))
        item.finish()
        if pairs and pair <= pairs[-1]:
            raise item.error(
                f"Labels not in unique, sorted order ({'='.join(pair)} after {'='.join(pairs[-1])})"
            )
        pairs.append(pair)
    return LabelSet.of(*pairs) if pairs else EMPTY_LABELS


def _read_fragment(mapping: StrictMapping | None) -> FragmentSpec:
    if mapping is None:
        return FragmentSpec()
    fragment = FragmentSpec(
        length=mapping.integer("length"),
        codec=CompressionCodec.from_wire(mapping.choice("compression_codec", _CODECS)),
        stores=mapping.texts("stores"),
        refresh_interval_ns=mapping.duration("refresh_interval"),
        retention_ns=mapping.duration("retention"),
        flush_interval_ns=mapping.duration("flush_interval"),
        path_postfix_template=mapping.text("path_postfix_template"),
    )
    mapping.finish()
    return fragment


def _read_suspend(mapping: StrictMapping | None) -> SuspendSpec | None:
    if mapping is None:
        return None
    suspend = SuspendSpec(
        level=SuspendLevel.from_wire(mapping.choice("level", _LEVELS)),
        offset=mapping.integer("offset"),
    )
    mapping.finish()
    return suspend


def render_journal_node(node: JournalNode) -> str:
    """The YAML of a tree, as it is: zero fields are left out, except the values of labels."""
    return dump_yaml(_node_fields(node))


def _node_fields(node: JournalNode) -> dict[str, object]:
    spec = node.spec
    fields: dict[str, object] = {
        "comment": node.comment,
        "delete": node.delete,
        "name": spec.name,
        "replication": spec.replication,
        "labels": [{"name": label.name, "value": label.value} for label in spec.labels],
        "fragment": _fragment_fields(spec.fragment),
        "flags": _name_or_number(spec.flags),
        "max_append_rate": spec.max_append_rate,
        "suspend": None if spec.suspend is None else _suspend_fields(spec.suspend),
        "revision": node.revision,
        "children": [_node_fields(child) for child in node.children],
    }
    return {key: value for key, value in fields.items() if value or _says_something(key, value)}


def _says_something(key: str, value: object) -> bool:
    """Whether a false or empty value is written: one that overrides a parent's, or is present."""
    return (key == "delete" and value is False) or (key == "suspend" and value is not None)


def _fragment_fields(fragment: FragmentSpec) -> dict[str, object]:
    fields: dict[str, object] = {
        "length": fragment.length,
        "compression_codec": _name_or_number(fragment.codec),
        "stores": list(fragment.stores),
        "refresh_interval": _duration_or_zero(fragment.refresh_interval_ns),
        "retention": _duration_or_zero(fragment.retention_ns),
        "flush_interval": _duration_or_zero(fragment.flush_interval_ns),
        "path_postfix_template": fragment.path_postfix_template,
    }
    return {key: value for key, value in fields.items() if value}


def _suspend_fields(suspend: SuspendSpec) -> dict[str, object]:
    fields: dict[str, object] = {
        "level": _name_or_number(suspend.level),
        "offset": suspend.offset,
    }
    return {key: value for key, value in fields.items() if value}


def _name_or_number(member: CompressionCodec | JournalFlag | SuspendLevel) -> str | int:
    if member == 0:
        return 0
    return member.name if member.is_known else int(member)


def _duration_or_zero(nanoseconds: int) -> str:
    return format_duration(nanoseconds) if nanoseconds else ""
