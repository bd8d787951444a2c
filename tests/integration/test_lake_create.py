"""`gazctl lake create`: from journals to a raw and a typed table by one command."""

import io
import json
import sys

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.cli.gazctl import main
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec

pytestmark = pytest.mark.etcd

CLICKS = [{"at": f"2026-01-02T03:04:0{n}Z", "page": f"/{n % 2}", "ms": n} for n in range(8)]


@pytest.fixture
def append(shared, names):
    """Create a journal, or use the one from before, and append records to it. Return its name."""
    with Client(ClientConfig(address=shared.address)) as client:

        def run(name, content):
            journal = names.journal(name)
            if not list(client.list(f"name={journal}")):
                fragment = FragmentSpec(
                    length=1 << 24,
                    codec=CompressionCodec.GZIP,
                    stores=("file:///",),
                    refresh_interval_ns=SECOND_NS,
                    path_postfix_template='date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}',
                )
                client.apply([Change(JournalSpec(journal, 1, fragment=fragment))])
            client.append(journal, content)
            return journal

        yield run


@pytest.fixture
def lake(shared, monkeypatch, tmp_path, capfdbinary):
    """Run a command of `gazctl lake` with a folder of specs of this test's own."""
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_METASTORE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GAZETTE_TABLES", str(tmp_path / "tables"))
    run = gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)
    return lambda *args: run(*args, group="lake")


@pytest.fixture
def create(lake):
    return lambda *args: lake("create", *args)


@pytest.fixture
def gazctl_sql(shared, monkeypatch, tmp_path, capfdbinary):
    run = gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)
    return lambda query: run(query, "-o", "csv", group="sql")


@pytest.fixture
def spec(tmp_path):
    """Read the spec that was applied."""
    return lambda name: parse_table_spec((tmp_path / f"tables/{name}.yaml").read_bytes())


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_json_journal_becomes_a_raw_and_a_typed_table(create, append, spec, gazctl_sql):
    journal = append("clicks", lines(*CLICKS))
    done = create("shop.clicks", journal, "--yes")
    assert (done.code, done.out) == (0, b""), done.err
    assert "shop.clicks: new (" in done.err
    assert 'query it: gazctl sql "FROM shop.clicks LIMIT 10"' in done.err
    assert "and to fill typed.clicks: gazette up" in done.err
    made = spec("shop.clicks")
    assert made.selector == f"name={journal}"
    types = {column.name: column.type for column in made.typed.columns}
    assert types["at"] == "timestamptz"
    found = gazctl_sql("SELECT count(*), sum(ms) FROM shop.clicks")
    assert found.out.splitlines()[1] == b"8,28"


def test_created_tables_are_listed_without_a_metastore(create, lake, append):
    assert create("shop.clicks", append("clicks", lines(*CLICKS)), "--yes").code == 0
    listed = lake("list")
    assert listed.code == 0, listed.err
    rows = [line.split()[:2] for line in listed.out.decode().splitlines()[1:]]
    assert rows == [["shop.clicks", "json"], ["typed.clicks", "typed"]]
    assert "add one to the platform with `gazette up`" in listed.err
    dropped = lake("drop", "shop.clicks")
    assert (dropped.code, dropped.out[:18]) == (0, b"name: shop.clicks\n")
    assert lake("list").out.decode().count("clicks") == 0


def test_same_again_changes_nothing_and_another_spec_is_refused(create, append, spec):
    journal = append("clicks", lines(*CLICKS))
    assert create("shop.clicks", journal, "--yes").code == 0
    before = spec("shop.clicks")
    again = create("shop.clicks", journal)
    assert (again.code, "shop.clicks: unchanged" in again.err) == (0, True)
    append("clicks", lines({"other": 1}))
    refused = create("shop.clicks", journal, "--yes")
    assert refused.code == 1
    assert "the table shop.clicks exists with another spec" in refused.err
    assert "`gazctl lake drop shop.clicks`" in refused.err
    assert spec("shop.clicks") == before


def test_prefix_and_selector_with_raw_only(create, append, spec, names):
    for region in ("eu", "us"):
        append(f"orders/region={region}", lines(*CLICKS))
    prefix = names.journal("orders/")
    assert create("shop.orders", prefix, "--raw-only", "--yes").code == 0
    assert create("shop.again", "-l", f"name:prefix={prefix}", "--raw-only", "--yes").code == 0
    for name in ("shop.orders", "shop.again"):
        assert spec(name).selector == f"name:prefix={prefix}"
        assert spec(name).typed is None


def test_csv_becomes_a_raw_table_alone(create, append, spec):
    journal = append("log", b"1,a\n2,b\n")
    done = create("shop.log", journal, "--yes")
    assert done.code == 0, done.err
    assert spec("shop.log").typed is None
    assert "typed tables are made of JSON records" in done.err


def test_without_a_person_or_yes_nothing_is_created(create, append, tmp_path, monkeypatch):
    journal = append("clicks", lines(*CLICKS))
    done = create("shop.clicks", journal)
    assert done.code == 1
    assert done.out.startswith(b"name: shop.clicks\n")
    assert "nothing was created (answer y, or repeat the command with --yes)" in done.err
    assert not (tmp_path / "tables").exists()


class Person(io.StringIO):
    """Stdin of a person."""

    def isatty(self):
        return True


def test_person_sees_the_spec_and_confirms(create, append, spec, monkeypatch, capfdbinary):
    journal = append("clicks", lines(*CLICKS))
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    assert main(["lake", "create", "shop.clicks", journal]) == 0
    out, err = capfdbinary.readouterr()
    assert b"typed:\n" in out
    assert b"Create shop.clicks and typed.clicks? [y/N]\n" in err
    assert spec("shop.clicks").typed.name == "typed.clicks"


@pytest.mark.parametrize(
    ("name", "journals", "says"),
    [
        ("clicks", ["clicks"], "TABLE: 'clicks' cannot be a table's name: write it as shop.events"),
        ("shop.clicks", ["none"], "JOURNAL_NOT_FOUND"),
        ("shop.clicks", ["plain/"], "make a table of each"),
        ("shop.clicks", ["empty"], "there is nothing to infer columns from; append some records"),
        ("shop.clicks", ["gzip"], "is compressed by gzip: append it decompressed"),
    ],
)
def test_refusal_is_one_line_with_the_next_step(
    create, append, names, tmp_path, name, journals, says
):
    append("clicks", lines(*CLICKS))
    append("plain/clicks", lines(*CLICKS))
    append("plain/views", lines(*CLICKS))
    append("empty", b"")
    append("gzip", b"\x1f\x8b\x08\0\0\0\0\0\n" * 10)
    done = create(name, *map(names.journal, journals), "--yes")
    assert done.code == 1
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "tables").exists()
