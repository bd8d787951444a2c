"""Documents of shards: push-down, hoisting, patches, and their YAML."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform.consumer.protocol import ShardSource, ShardSpec
from gazette_platform.consumer.protocol.documents import (
    ShardChange,
    ShardEntry,
    ShardSpace,
    parse_shard_changes,
    parse_shard_space,
    render_shard_space,
    shard_space_of,
    shards_yaml,
)
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import LabelSet

DOCUMENT = """\
common:                     # a spec without id
  recovery_log_prefix: app/logs
  hint_prefix: /app/hints
  max_txn_duration: 1s
  hot_standbys: 1
  labels: [{name: team, value: search}]
shards:
- id: index-a
  sources: [{journal: app/events/a}]
  labels: [{name: canary}]
  revision: 12
- {id: index-b, delete: true, revision: 13}
"""
INDEX_A = ShardSpec(
    "index-a",
    (ShardSource("app/events/a"),),
    recovery_log_prefix="app/logs",
    hint_prefix="/app/hints",
    max_txn_duration_ns=10**9,
    hot_standbys=1,
    labels=LabelSet.of(canary="", team="search"),
)


def test_cv6_document_asks_for_changes():
    assert parse_shard_changes(DOCUMENT) == [
        ShardChange(INDEX_A, "", 12),
        ShardChange(None, "index-b", 13),
    ]


def test_cv6_list_hoists_what_shards_share():
    other = replace(INDEX_A, id="index-b", labels=LabelSet.of(team="search"), hot_standbys=2)
    assert (
        shards_yaml([(other, 13), (INDEX_A, 12)])
        == """\
common:
  sources:
  - journal: app/events/a
  recovery_log_prefix: app/logs
  hint_prefix: /app/hints
  max_txn_duration: 1s
  labels:
  - name: team
    value: search
shards:
- id: index-a
  hot_standbys: 1
  labels:
  - name: canary
    value: ""
  revision: 12
- id: index-b
  hot_standbys: 2
  revision: 13
"""
    )


def test_cv6_of_one_shard_everything_but_its_id_is_common():
    space = shard_space_of([(INDEX_A, 12)]).hoist()
    assert space == ShardSpace(
        replace(INDEX_A, id=""), (ShardEntry(ShardSpec("index-a"), revision=12),)
    )
    assert shard_space_of([]).hoist() == ShardSpace()


def test_yaml_names_common_and_shards_even_if_empty():
    assert shards_yaml([]) == "common: {}\nshards: []\n"
    one, other = ShardSpec("shard-000", hot_standbys=1), ShardSpec("shard-001", hot_standbys=2)
    assert shards_yaml([(one, 0), (other, 0)]).startswith("common: {}\nshards:\n- id: shard-000\n")


def test_cv3_shard_wins_over_common_by_field_and_by_name_of_label():
    common = ShardSpec(
        "",
        (ShardSource("a/one"),),
        hot_standbys=1,
        disable=True,
        labels=LabelSet.of(aa="1", bb="2"),
    )
    own = ShardSpec(
        "shard-000", (ShardSource("a/two"),), labels=LabelSet.of(("bb", "3"), ("bb", "4"))
    )
    [entry] = ShardSpace(common, (ShardEntry(own),)).push_down().shards
    assert entry.spec == replace(
        own,
        hot_standbys=1,
        disable=True,  # a shard cannot take it back
        labels=LabelSet.of(("aa", "1"), ("bb", "3"), ("bb", "4")),
    )


SPECS = st.builds(
    ShardSpec,
    id=st.sampled_from([f"shard-{n}" for n in range(4)]),
    sources=st.sampled_from(
        [(), (ShardSource("a/one"),), (ShardSource("a/one", 5), ShardSource("b/two"))]
    ),
    recovery_log_prefix=st.sampled_from(["", "one", "two"]),
    hint_prefix=st.sampled_from(["", "/one"]),
    hint_backups=st.integers(0, 2),
    max_txn_duration_ns=st.sampled_from([0, 10**6, 61 * 10**9]),
    min_txn_duration_ns=st.sampled_from([0, 1]),
    disable=st.booleans(),
    hot_standbys=st.integers(0, 2),
    labels=st.sampled_from(
        [LabelSet(), LabelSet.of(aa="1"), LabelSet.of(("aa", "1"), ("aa", "2")), LabelSet.of(bb="")]
    ),
    disable_wait_for_ack=st.booleans(),
    ring_buffer_size=st.integers(0, 1),
    read_channel_size=st.integers(0, 1),
)
SHARDS = st.lists(SPECS, unique_by=lambda spec: spec.id).map(
    lambda specs: shard_space_of([(spec, n) for n, spec in enumerate(specs)])
)


@given(SHARDS)
@settings(max_examples=60)
def test_cv3_hoisting_and_yaml_lose_nothing(space):
    assert space.hoist().push_down() == space
    assert parse_shard_space(render_shard_space(space)) == space
    assert parse_shard_space(render_shard_space(space.hoist())).push_down() == space


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("common: {id: abcd}", "common: must not have an id"),
        ("shards: [{id: abc}]", r"Shards\[0\].Id: invalid length \(3"),
        (
            "shards: [{id: shard-b}, {id: shard-a}]",
            "expected Shards to be ordered .*sort them by id",
        ),
        ("shards: [{id: shard-a}, {id: shard-a}]", "name each once"),
        ("shards: [{id: shard-a, revision: -2}]", r"Shards\[0\]: invalid Revision \(-2"),
        ("shards: [{id: shard-a, delete: true}]", "shard shard-a: delete needs the revision"),
        ("shards: [{id: shard-a}]", r"shard shard-a: invalid MaxTxnDuration \(0s; expected > 0\)"),
        ("shards: [{id: shard-a, hot_standby: 1}]", "yaml: line 1: unknown key 'hot_standby'"),
        ("shard: []", "unknown key 'shard'"),
        ("common: {sources: [{journal: a/b, offset: 1}]}", "unknown key 'offset'"),
        ("common: {max_txn_duration: 1}\nshards: [{id: [1]}]", "id must be a single value"),
        (
            "common: {labels: [{name: bb}, {name: aa}]}",
            "Labels not in unique, sorted order",
        ),
    ],
)
def test_bad_documents_are_refused(document, problem):
    with pytest.raises(ValidationError, match=problem):
        parse_shard_changes(document)
