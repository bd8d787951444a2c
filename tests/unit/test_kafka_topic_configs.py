"""What configs of topics mean for specs of journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gazette_platform.kafka.calls.topic_configs import (
    altered_spec,
    changes_of,
    configs_of,
    template_of,
)
from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.failures import KafkaError

if TYPE_CHECKING:
    from gazette_platform.protocol import JournalSpec

CONFIG = KafkaConfig(store="file:///")
DAY_MS = 24 * 3600 * 1000


def made(**configs) -> JournalSpec:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    return template_of(CONFIG, ("file:///",), 1, given).spec("t", 0, "topic/")


def altered(spec: JournalSpec, **changes) -> JournalSpec:
    given = {name.replace("_", "."): value for name, value in changes.items()}
    return altered_spec(spec, CONFIG, given)


def retention_ms(spec: JournalSpec) -> int:
    """After which fragments are deleted; 0: never."""
    return spec.fragment.retention_ns // 1_000_000


@pytest.mark.parametrize(
    ("policy", "shown", "is_deleted"),
    [
        ("delete", "delete", True),
        ("compact", "compact", False),
        ("compact,delete", "compact,delete", True),
        ("delete, compact", "compact,delete", True),
    ],
)
def test_fragments_are_deleted_by_time_only_where_the_policy_says_so(policy, shown, is_deleted):
    for spec in (
        made(cleanup_policy=policy, retention_ms=str(DAY_MS)),
        made(retention_ms=str(DAY_MS), cleanup_policy=policy),
        altered(made(cleanup_policy=policy), retention_ms=str(DAY_MS)),
        altered(made(retention_ms=str(DAY_MS)), cleanup_policy=policy),
    ):
        assert retention_ms(spec) == DAY_MS * is_deleted
        configs = configs_of(spec)
        assert (configs["cleanup.policy"], configs["retention.ms"]) == (shown, str(DAY_MS))


def test_the_retention_is_back_when_a_topic_is_not_compact_alone_any_more():
    spec = made(cleanup_policy="compact", retention_ms=str(DAY_MS))
    assert retention_ms(altered(spec, compression_type="gzip")) == 0
    for policy in ("delete", "compact,delete", None):
        assert retention_ms(altered(spec, cleanup_policy=policy)) == DAY_MS
    without = altered(spec, retention_ms=None)
    assert retention_ms(altered(without, cleanup_policy="delete")) == 0
    assert altered(altered(spec, cleanup_policy="delete"), cleanup_policy="compact") == spec
    assert altered(altered(made(), cleanup_policy="compact"), cleanup_policy=None) == made()


def test_a_retention_that_is_in_the_spec_counts():
    """Someone gave it without Kafka."""
    spec = made(cleanup_policy="compact")
    spec = replace(spec, fragment=replace(spec.fragment, retention_ns=DAY_MS * 1_000_000))
    assert configs_of(spec)["cleanup.policy"] == "compact,delete"
    assert retention_ms(altered(spec, compression_type="gzip")) == DAY_MS
    assert retention_ms(altered(spec, cleanup_policy="compact")) == 0


def test_a_list_is_appended_to_and_subtracted_from():
    def policy(spec, *operations):
        changes = changes_of(spec, [("cleanup.policy", *each) for each in operations])
        return configs_of(altered_spec(spec, CONFIG, changes))["cleanup.policy"]

    assert policy(made(), (2, "compact")) == "compact,delete"
    assert policy(made(), (2, "delete")) == "delete"
    both = made(cleanup_policy="compact,delete")
    assert policy(both, (3, "delete")) == "compact"
    assert policy(both, (3, "compact")) == "delete"
    assert policy(both, (1, None)) == "delete"
    assert policy(made(), (0, "compact")) == "compact"
    for wrong in ([(3, "delete")], [(2, "forget")], [(4, "compact")], [(0, "")]):
        with pytest.raises(KafkaError):
            policy(made(), *wrong)
    with pytest.raises(KafkaError, match="is not a list"):
        changes_of(made(), [("retention.ms", 2, "1")])


def test_what_a_config_has_already_changes_nothing():
    spec = made(kafka_form="envelope", retention_ms=str(DAY_MS))
    assert altered_spec(spec, CONFIG, configs_of(spec)) == spec
    with pytest.raises(KafkaError, match="bytes of a topic cannot be changed"):
        altered_spec(spec, CONFIG, configs_of(spec) | {"retention.bytes": "1"})


def test_odd_labels_give_topics_without_retention():
    spec = made(cleanup_policy="compact", retention_ms="5")
    odd = replace(spec, labels=spec.labels.with_value("kafka.retention-ms", "soon"))
    assert configs_of(odd)["retention.ms"] == "-1"
    assert altered(odd, cleanup_policy="delete").fragment == made().fragment
    large = replace(spec, labels=spec.labels.with_value("kafka.retention-ms", "9" * 30))
    altered(large, cleanup_policy="delete").validate()
