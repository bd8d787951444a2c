"""What a new journal is, unless its user says otherwise."""

import pytest
import yaml

from gazette_platform.cli.gazctl.journals.create import (
    default_replication,
    default_stores,
    flush_interval_ns,
    labels_of,
    new_journal,
    zones_of,
)
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import BrokerSpec, ProcessId
from gazette_platform.yaml_specs.journal_tree import to_journal_tree

LOCAL = ["http://localhost:8080", "http://localhost:8081"]


def broker(zone, number=1, **fields):
    return BrokerSpec(ProcessId(zone, f"broker-{number}"), LOCAL[0], **fields)


@pytest.mark.parametrize(
    ("brokers", "replicas"),
    [
        ([], 1),
        ([broker("a")], 1),
        ([broker("a", 1), broker("a", 2), broker("a", 3)], 1),
        ([broker("a"), broker("b")], 2),
        ([broker(zone) for zone in "abcde"], 3),
        ([broker("a"), broker("b", exiting=True), broker("c", journal_limit=0)], 1),
    ],
    ids=["none", "one", "one-zone", "two-zones", "five-zones", "leaving-or-full"],
)
def test_replication_follows_zones_that_take_journals(brokers, replicas):
    assert default_replication(zones_of(brokers)) == replicas


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("events/eu/b", "s3://eu/"),
        ("events/us/b", "s3://us/"),
        ("logs/b", "s3://logs/"),
    ],
)
def test_store_is_that_of_the_nearest_journals(name, store):
    journals = {
        "events/eu/a": ["s3://eu/"],
        "events/us/a": ["s3://us/"],
        "events/us/kept-in-brokers": [],
        "logs/deep/a": ["s3://logs/"],
    }
    assert default_stores(name, journals, LOCAL) == (store,)


def test_store_of_several_urls_is_taken_whole():
    journals = {"a/one": ["s3://new/", "s3://old/"]}
    assert default_stores("b", journals, LOCAL) == ("s3://new/", "s3://old/")


@pytest.mark.parametrize(("name", "where"), [("events/c", "below events/"), ("other", "here")])
def test_neighbours_with_different_stores_leave_the_choice(name, where):
    journals = {"events/a": ["s3://one/"], "events/b": ["s3://two/"]}
    with pytest.raises(ValidationError, match=rf"--store: .*{where} use.*\(s3://one/, s3://two/\)"):
        default_stores(name, journals, LOCAL)


def test_first_journal_of_one_machine_uses_the_file_root():
    assert default_stores("a", {}, LOCAL) == ("file:///",)


def test_first_journal_of_several_machines_needs_a_store():
    with pytest.raises(ValidationError, match=r"brokers are on 2 machines.*--store s3://"):
        default_stores("a", {}, ["http://one:8080", "http://two:8080"])


def test_defaults_are_those_of_the_guides():
    spec = new_journal("events/x", replication=1, stores=("file:///",))
    assert yaml.safe_load(to_journal_tree([(spec, 0)])) == {
        "name": "events/x",
        "replication": 1,
        "fragment": {
            "length": 67108864,
            "compression_codec": "GZIP",
            "stores": ["file:///"],
            "refresh_interval": "1m0s",
            "flush_interval": "1m0s",
            "path_postfix_template": 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}',
        },
    }


def test_options_change_codec_partition_and_flush():
    spec = new_journal(
        "events/x",
        replication=2,
        stores=("file:///",),
        codec="zstd",
        partition_by="hour",
        flush_ns=0,
        labels=labels_of(["kind=events", "team=a", "team=b"]),
    )
    assert spec.fragment.codec.name == "ZSTANDARD"
    assert spec.fragment.path_postfix_template.endswith(
        '/hour={{ .Spool.FirstAppendTime.Format "15" }}'
    )
    assert spec.fragment.flush_interval_ns == 0
    assert spec.labels.values_of("team") == ("a", "b")
    plain = new_journal("logs/app", replication=1, stores=(), partition_by="none")
    assert plain.fragment.path_postfix_template == ""


@pytest.mark.parametrize("label", ["kind", "=events", ""])
def test_label_without_name_or_value_is_refused(label):
    with pytest.raises(ValidationError, match=rf"--label: is not NAME=VALUE \({label}\)"):
        labels_of([label])


def test_directory_is_not_a_name_of_a_journal():
    with pytest.raises(ValidationError, match=r"events/ names a directory.*events/part=0"):
        new_journal("events/", replication=1, stores=())


def test_error_of_a_name_says_which():
    with pytest.raises(ValidationError, match=r"^x: Name: invalid length"):
        new_journal("x", replication=1, stores=())


@pytest.mark.parametrize(
    ("text", "error"),
    [("30s", r"no less than 1m, or 0s .*\(30s\)"), ("5", "missing unit"), ("-1m", "no less than")],
)
def test_flush_interval_that_brokers_refuse_is_refused(text, error):
    with pytest.raises(ValidationError, match=f"--flush: .*{error}"):
        flush_interval_ns(text)
