"""Trees of journals, and the YAML that ``gazctl journals apply`` reads and ``list`` writes.

A node whose name is empty or ends in ``/`` is a directory; other nodes are journals. *Push-down* fills the zero fields
of children from their parents and yields whole specs. *Hoisting* is the way back: a directory takes what is equal
in all its children. `suspend` and `revision` belong to one journal and take no part.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import format_duration
from gazette_platform.protocol.enums import CompressionCodec, JournalFlag, SuspendLevel
from gazette_platform.protocol.labels import EMPTY_LABELS, LabelSet
from gazette_platform.protocol.names import check_field, conflicting_prefix, validate_journal_name
from gazette_platform.protocol.specs import FragmentSpec, JournalChange, JournalSpec, SuspendSpec
from gazette_platform.yaml_specs.documents import StrictMapping, check_change, dump_yaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Directories below each other that a tree is made of. Deeper names stay whole in the last one:
# cut up they are not easier to read, and readers and writers of YAML recurse.
_DEPTH_MAX = 24


@dataclass(frozen=True, slots=True)
class JournalNode:
    """A directory or journal of a tree."""

    spec: JournalSpec
    """Zero fields are to be taken from the parent."""
    comment: str = ""
    delete: bool | None = None
    """Whether to delete; None takes the parent's."""
    revision: int = 0
    children: tuple[JournalNode, ...] = field(default=())

    @property
    def is_directory(self) -> bool:
        """Whether the node is a directory."""
        return not self.spec.name or self.spec.name.endswith("/")

    def validate(self) -> None:
        """Check the shape of the tree, not whether specs are whole.

        Raises: ValidationError: with the path ``Children[i]…`` of the node.
        """
        name = self.spec.name
        if self.is_directory:
            if self.revision != 0:
                raise ValidationError(f"unexpected Revision ({self.revision})")
            if not self.children:
                raise ValidationError(
                    "expected one or more Children (a name that is empty or ends in '/' is a "
                    "directory; list its journals below `children`)"
                )
        else:
            check_field("Name", validate_journal_name, name)
            if self.children:
                raise ValidationError(f"expected no Children with non-directory Node ({name})")
            if self.revision < -1:
                raise ValidationError(f"invalid Revision ({self.revision}; expected >= -1)")
        previous: str | None = None
        for index, child in enumerate(self.children):
            inner = child.spec.name
            if not inner.startswith(name):
                raise ValidationError(f"expected parent Name to prefix child ({name} vs {inner})")
            if previous is not None and inner <= previous:
                step = "name each once" if inner == previous else "sort them by name"
                raise ValidationError(
                    f"expected Children to be ordered (ind {index}; {previous} vs {inner}; {step})"
                )
            previous = inner
            check_field(f"Children[{index}]", child.validate)

    def leaves(self) -> Iterator[JournalNode]:
        """The journals below, or the node itself, in order, without what parents hold."""
        if not self.is_directory:
            yield self
        for child in self.children:
            yield from child.leaves()

    def push_down(self) -> JournalNode:
        """The tree with every field of parents filled into the zero fields of children."""
        return replace(
            self,
            children=tuple(
                replace(
                    child,
                    spec=_union(child.spec, self.spec),
                    delete=self.delete if child.delete is None else child.delete,
                ).push_down()
                for child in self.children
            ),
        )

    def changes(self) -> list[JournalChange]:
        """The change that each journal of the tree asks for, in order of names.

        Raises: ValidationError: the tree or a spec is not valid, a deletion lacks its revision, or
            the name of a journal is a directory of another's.
        """
        self.validate()
        changes = [_change_of(leaf) for leaf in self.push_down().leaves()]
        conflict = conflicting_prefix(c.name for c in changes if c.spec is not None)
        if conflict is not None:
            raise ValidationError(
                f"journal {conflict[0]} is a directory of journal {conflict[1]}: "
                "it would list the other's fragments as its own; rename one of them"
            )
        return changes


def _change_of(leaf: JournalNode) -> JournalChange:
    name = leaf.spec.name
    check_change(f"journal {name}", leaf.spec, delete=leaf.delete, revision=leaf.revision)
    if leaf.delete:
        return JournalChange(None, name, leaf.revision)
    return JournalChange(leaf.spec, "", leaf.revision)


def _union(own: JournalSpec, parent: JournalSpec) -> JournalSpec:
    """`own` with zero fields filled from `parent`."""
    mine, theirs = own.fragment, parent.fragment
    return JournalSpec(
        name=own.name,
        replication=own.replication or parent.replication,
        labels=parent.labels.union(own.labels),
        fragment=FragmentSpec(
            length=mine.length or theirs.length,
            codec=mine.codec or theirs.codec,
            stores=mine.stores or theirs.stores,
            refresh_interval_ns=mine.refresh_interval_ns or theirs.refresh_interval_ns,
            retention_ns=mine.retention_ns or theirs.retention_ns,
            flush_interval_ns=mine.flush_interval_ns or theirs.flush_interval_ns,
            path_postfix_template=mine.path_postfix_template or theirs.path_postfix_template,
        ),
        flags=own.flags or parent.flags,
        max_append_rate=own.max_append_rate or parent.max_append_rate,
        suspend=own.suspend,
    )


def _intersect(one: JournalSpec, other: JournalSpec) -> JournalSpec:
    """The fields that are equal in both; others are zero, as are name and suspension."""
    return JournalSpec(
        name="",
        replication=one.replication if one.replication == other.replication else 0,
        labels=one.labels.intersect(other.labels),
        fragment=_pick_fragment(one.fragment, other.fragment, equal=True),
        flags=one.flags if one.flags == other.flags else JournalFlag.NOT_SPECIFIED,
        max_append_rate=one.max_append_rate if one.max_append_rate == other.max_append_rate else 0,
    )


def _subtract(own: JournalSpec, shared: JournalSpec) -> JournalSpec:
    """`own` without the fields that are equal in `shared`."""
    return JournalSpec(
        name=own.name,
        replication=own.replication if own.replication != shared.replication else 0,
        labels=own.labels.subtract(shared.labels),
        fragment=_pick_fragment(own.fragment, shared.fragment, equal=False),
        flags=own.flags if own.flags != shared.flags else JournalFlag.NOT_SPECIFIED,
        max_append_rate=own.max_append_rate if own.max_append_rate != shared.max_append_rate else 0,
        suspend=own.suspend,
    )


def _pick_fragment(own: FragmentSpec, other: FragmentSpec, *, equal: bool) -> FragmentSpec:
    """The fields of `own` that are equal to `other`'s, or that are not."""

    def pick(mine: int, theirs: int) -> int:
        return mine if (mine == theirs) is equal else 0

    template = own.path_postfix_template
    return FragmentSpec(
        length=pick(own.length, other.length),
        codec=CompressionCodec.from_wire(pick(own.codec, other.codec)),
        stores=own.stores if (own.stores == other.stores) is equal else (),
        refresh_interval_ns=pick(own.refresh_interval_ns, other.refresh_interval_ns),
        retention_ns=pick(own.retention_ns, other.retention_ns),
        flush_interval_ns=pick(own.flush_interval_ns, other.flush_interval_ns),
        path_postfix_template=template
        if (template == other.path_postfix_template) is equal
        else "",
    )


def tree_of(journals: Iterable[tuple[JournalSpec, int]]) -> JournalNode | None:
    """The tree with fewest directories that has these journals, not hoisted.

    Of names that share directories more than 24 deep, those below are not cut further.

    Args:
        journals: specs and revisions, in any order; names must differ.

    Returns: a directory, or the journal itself if it is the only one; None if there is none.
    """
    leaves = [
        JournalNode(spec=spec, revision=revision)
        for spec, revision in sorted(journals, key=lambda item: item[0].name)
    ]
    return _directory_of(leaves) if leaves else None


def _directory_of(leaves: Sequence[JournalNode], depth: int = 0) -> JournalNode:
    if len(leaves) == 1:
        return leaves[0]
    # Sorted, so what the first and the last share is shared by all.
    prefix = _shared_directory(leaves[0].spec.name, leaves[-1].spec.name)

    def segment(leaf: JournalNode) -> str:
        rest = leaf.spec.name[len(prefix) :]
        head, slash, _ = rest.partition("/")
        return head + slash

    if depth < _DEPTH_MAX:
        groups = groupby(leaves, segment)
        children = [_directory_of(list(group), depth + 1) for _, group in groups]
    else:
        children = list(leaves)
    return JournalNode(spec=JournalSpec(prefix), children=tuple(children))


def _shared_directory(first: str, last: str) -> str:
    """The longest prefix of both that ends in ``/``, or "".

    >>> _shared_directory("foo/bar/one", "foo/baz")
    'foo/'
    """
    length = 0
    for index, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            break
        if one == "/":
            length = index + 1
    return first[:length]


def hoist(node: JournalNode) -> JournalNode:
    """The tree with what all children of a directory share moved into the directory.

    `JournalNode.push_down` of the result gives the specs of `node`, if directories of `node` were
    empty as `tree_of` makes them.
    """
    if not node.children:
        return node
    children = [hoist(child) for child in node.children]
    shared = children[0].spec
    for child in children[1:]:
        shared = _intersect(shared, child.spec)
    shared = replace(shared, name=node.spec.name, suspend=None)
    return replace(
        node,
        spec=shared,
        children=tuple(replace(child, spec=_subtract(child.spec, shared)) for child in children),
    )


# Deeper than the segments of the longest journal name that anybody has.
_NESTING_MAX = 64

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
    if depth > _NESTING_MAX:
        raise mapping.error(f"children are nested deeper than {_NESTING_MAX} levels")
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
