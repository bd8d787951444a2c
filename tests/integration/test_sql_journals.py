"""SQL over journals that have no table spec, in this process and by `gazctl sql`."""

import json

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.errors import LakeError, SchemaMismatch, ValidationError
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.table_spec import read_table_spec
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

pytestmark = pytest.mark.etcd

DATE = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def settings(shared):
    return LakeSettings(
        broker=shared.address, store_roots={"file:///": f"file://{shared.fragments}/"}
    )


@pytest.fixture
def sql(client, settings):
    with connect(client=client, settings=settings) as sql:
        yield sql


@pytest.fixture
def create(client, names):
    """Makes a journal of this test's own, and returns its name."""

    def run(name, *contents, codec=CompressionCodec.GZIP, postfix="", **labels):
        journal = names.journal(name)
        fragment = FragmentSpec(
            length=1 << 24,
            codec=codec,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
            path_postfix_template=postfix,
        )
        spec = JournalSpec(
            name=journal, replication=1, fragment=fragment, labels=LabelSet.of(**labels)
        )
        client.apply([Change(spec)])
        for content in contents:
            client.append(journal, content)
        return journal

    return run


@pytest.fixture
def events(create, client, names):
    """A prefix of two journals of JSON: most of it is persisted, gzip and plain, and some is only live."""
    eu = create("events/region=eu", lines(*events_of("eu", 0, 50)), postfix=DATE)
    us = create("events/region=us", lines(*events_of("us", 100, 30)), codec=CompressionCodec.NONE, postfix=DATE)  # fmt: skip
    client.flush(f"name:prefix={names.prefix}/")
    client.append(eu, lines(*events_of("eu", 50, 7)))
    client.append(us, lines(*events_of("us", 130, 3)))
    return names.journal("events/")


def events_of(kind, first, count):
    return [{"n": n, "kind": kind, "amount": n / 4} for n in range(first, first + count)]


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def ask(sql, query, *parameters):
    return sql.execute(query, parameters or None).fetchall()


BY_KIND = [("eu", 57, sum(range(57))), ("us", 33, sum(range(100, 133)))]


def test_prefix_is_a_table_with_the_live_tail(sql, client, events):
    query = f"SELECT kind, count(*), sum(n) FROM journal('{events}') GROUP BY 1 ORDER BY 1"
    assert ask(sql, query) == BY_KIND
    (snapshot,) = (sql.snapshot(name) for name in sql.inferred())
    for journal in snapshot.journals:  # of both, a part is persisted and a part is not
        assert 0 < journal.stored_end < journal.head == client.write_head(journal.name)
    # What is appended later is in the next query.
    client.append(f"{events}region=eu", lines({"n": 1000, "kind": "new", "amount": 1}))
    assert ask(sql, query) == [BY_KIND[0], ("new", 1, 1000), BY_KIND[1]]
    assert ask(sql, f"SELECT count(*) FROM journal('{events}') WHERE region = 'us'") == [(33,)]


def test_describe_shows_columns_and_their_types(sql, events):
    expected = [
        ("n", "BIGINT"), ("kind", "VARCHAR"), ("amount", "DOUBLE"), ("region", "VARCHAR"), ("date", "DATE"),
    ]  # fmt: skip
    for query in (f"DESCRIBE journal('{events}')", f"DESCRIBE FROM journal('{events}')"):
        assert [row[:2] for row in ask(sql, query)] == expected
    assert ask(sql, f"SELECT min, max FROM (SUMMARIZE journal('{events}'))")[0] == ("0", "132")
    (table,) = sql.inferred().values()
    assert table.spec.selector == f"name:prefix={events}"
    assert (table.journals, table.inference.records, table.is_read_whole) == (2, 90, True)


def test_one_journal_and_a_selector_are_tables(sql, create, events, names):
    assert ask(sql, f"SELECT count(*) FROM journal('{events}region=us')") == [(33,)]
    create("other", lines({"a": 1}), tier="gold")
    for name in (
        f"name:prefix={names.prefix}/,tier=gold",
        f"tier in (gold,silver),name={names.journal('other')}",
    ):
        assert ask(sql, f"FROM journal('{name}')") == [(1,)]


def test_label_is_a_selector_unless_a_journal_is_called_so(sql, create, names):
    create("labelled", lines({"a": 1}), owner=names.tag)
    assert ask(sql, f"FROM journal('owner={names.tag}')") == [(1,)]


def test_journals_may_be_named_anywhere_in_a_query(sql, create, events):
    other = create(
        "other", lines({"n": 3, "note": f"journal('{events}x')"}, {"n": 4, "note": None})
    )
    query = f"""
        WITH eu AS (FROM journal('{events}region=eu') WHERE n < 5) -- journal('no/such/')
        SELECT eu.n, o.note, 'journal(''no/such/'')', (SELECT count(*) FROM journal('{events}')) AS every
        FROM eu JOIN journal($${other}$$) AS o USING (n) ORDER BY 1 /* journal('none/') */"""
    assert ask(sql, query) == [
        (3, f"journal('{events}x')", "journal('no/such/')", 90),
        (4, None, "journal('no/such/')", 90),
    ]
    assert set(sql.inferred()) == {f"journal('{n}')" for n in (f"{events}region=eu", events, other)}
    assert ask(sql, "SELECT count(*) FROM journal(?) WHERE n < ?", events, 10) == [(10,)]
    assert ask(sql, "SELECT 'journal(''no/such/'')'") == [("journal('no/such/')",)]
    assert sql.inferred() == {}


def test_statements_of_every_kind_read_journals(sql, client, events, tmp_path):
    journal = f"journal('{events}region=us')"
    assert ask(sql, f"CREATE TABLE mine AS FROM {journal}; SELECT count(*) FROM mine") == [(33,)]
    ask(sql, f"COPY (SELECT n FROM {journal}) TO '{tmp_path}/n.csv'")
    assert len((tmp_path / "n.csv").read_text().splitlines()) == 34
    ask(sql, f"CREATE VIEW latest AS SELECT max(n) AS n FROM {journal}")
    assert ask(sql, f"PIVOT {journal} ON kind USING count(*)")[0][-1] == 1
    client.append(f"{events}region=us", lines({"n": 7000, "kind": "us", "amount": 0}))
    assert ask(sql, "FROM latest") == [(7000,)]
    ask(sql, "BEGIN")
    with pytest.raises(ValidationError, match="no such journals"):
        ask(sql, "FROM journal('none/')")
    assert ask(sql, f"SELECT count(*) FROM {journal}") == [(34,)]
    with pytest.raises(LakeError):
        ask(sql, "SELECT error('broken')")
    ask(sql, "ROLLBACK")
    assert ask(sql, f"SELECT count(*) FROM {journal}") == [(34,)]


def test_rows_of_a_journal_have_offsets_on_demand(sql, create):
    journal = create("Log", b"a,1\nb,2\n")
    other = create("log", b"c,3\n")
    assert sql.journal(journal).fetchall() == [("a", "1"), ("b", "2")]
    # DuckDB ignores the case of names.
    assert sql.journal(other).fetchall() == [("c", "3")]
    found = sql.journal(journal, offsets=True)
    assert found.columns == ["_journal", "_offset", "_fragment", "c1", "c2"]
    assert found.fetchall() == [(journal, 0, None, "a", "1"), (journal, 4, None, "b", "2")]
    assert ask(sql, f"SELECT _offset FROM journal('{journal}', offsets := true)") == [(0,), (4,)]


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
@pytest.mark.parametrize("is_persisted", [False, True])
def test_csv_is_a_table_of_texts(sql, client, create, codec, is_persisted):
    journal = create("csv", b'1,"a, b",x\n2,c,y\n', codec=codec)
    if is_persisted:
        client.flush(f"name={journal}")
    query = f"SELECT c1, c2 FROM journal('{journal}') ORDER BY 1"
    assert ask(sql, query) == [("1", "a, b"), ("2", "c")]


@pytest.mark.parametrize("is_persisted", [False, True])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_header_of_each_append_is_not_a_row(sql, client, create, is_persisted, delimiter):
    files = (
        (("id", "Unit price", "note"), ("1", "2.5", "a, b")),
        (("id", "Unit price", "note"), ("2", "3.5", "")),
    )
    contents = [
        "".join(delimiter.join(f'"{cell}"' for cell in row) + "\r\n" for row in file).encode()
        for file in files
    ]
    journal = create("headers", b"\xef\xbb\xbf" + contents[0], contents[1], contents[1])
    if is_persisted:
        client.flush(f"name={journal}")
    assert sql.journal(journal).columns == ["id", "unit_price", "note"]
    query = f"SELECT id, unit_price, note, _offset FROM journal('{journal}', offsets := true) ORDER BY _offset"
    first, second = (content.index(b"\n") + 1 for content in contents)
    begins = [
        3 + first,
        3 + len(contents[0]) + second,
        3 + len(contents[0]) + len(contents[1]) + second,
    ]
    rows = [("1", "2.5", "a, b"), ("2", "3.5", ""), ("2", "3.5", "")]
    assert ask(sql, query) == [(*row, begin) for row, begin in zip(rows, begins, strict=True)]
    assert ask(sql, f"SELECT count(*) FROM journal('{journal}')") == [(3,)]
    assert ask(sql, f"SELECT id FROM journal('{journal}') WHERE note = ''") == [("2",), ("2",)]


def test_columns_stay_for_the_session(sql, client, create, settings):
    journal = create("grows", lines({"a": 1}))
    assert sql.journal(journal).columns == ["a"]
    client.append(journal, lines({"a": 2, "b": 3}))
    assert ask(sql, f"FROM journal('{journal}') ORDER BY a") == [(1,), (2,)]
    with connect(client=client, settings=settings) as later:
        assert later.journal(journal).columns == ["a", "b"]


def test_large_journal_is_read_whole_though_sampled_in_part(sql, create):
    whole = create("whole", lines(*({"n": n, "text": "x" * 1000} for n in range(2000))))
    assert ask(sql, f"SELECT count(*) FROM journal('{whole}')") == [(2000,)]
    assert next(iter(sql.inferred().values())).is_read_whole
    rows = [{"n": n, "text": "x" * 1000} for n in range(3000)]
    journal = create("large", lines(*rows[:1500]), lines(*rows[1500:]))
    assert ask(sql, f"SELECT count(*), sum(n) FROM journal('{journal}')") == [
        (3000, sum(range(3000)))
    ]
    (table,) = sql.inferred().values()
    assert not table.is_read_whole
    assert table.inference.records < 3000


def test_records_are_found_though_most_journals_are_empty(sql, create, names):
    for number in range(18):
        create(f"sparse/{number:02}", *([lines({"n": 5})] if number == 7 else []))
    assert ask(sql, f"SELECT n FROM journal('{names.journal('sparse/')}')") == [(5,)]
    (table,) = sql.inferred().values()
    assert (table.journals, table.is_read_whole) == (1, True)


def test_paths_of_two_kinds_are_one_table(sql, create, names):
    create("kinds/a", lines({"n": 1}))
    create("kinds/region=eu", lines({"n": 2}))
    query = f"SELECT n, region FROM journal('{names.journal('kinds/')}') ORDER BY n"
    assert ask(sql, query) == [(1, None), (2, "eu")]


def test_names_of_no_journal_are_refused_with_those_meant(sql, events):
    for wrong in (events.removesuffix("/"), events.replace("events", "even1s")):
        with pytest.raises(ValidationError, match=rf"no such journals .*did you mean .*{events}"):
            sql.journal(wrong)
    with pytest.raises(ValidationError, match=rf"did you mean .*{events}region=us"):
        sql.journal(f"{events}region=uss")
    with pytest.raises(ValidationError, match="not a journal's name, a prefix that ends in `/`"):
        sql.journal("name:prefix=a/,(")
    with pytest.raises(ValidationError, match="no such journals"):
        sql.journal("")
    with pytest.raises(LakeError, match=r"there is no table .*: no table spec is known"):
        sql.execute("FROM orders")
    with pytest.raises(LakeError, match=rf"write FROM journal\('{events}'\)"):
        sql.execute(f"FROM '{events}'")


@pytest.mark.parametrize("content", [(), (b"\n \n",)])
def test_journals_without_a_record_are_refused(sql, create, names, content):
    create("empty/a")
    create("empty/b", *content)
    with pytest.raises(SchemaMismatch, match=r"2 journals without a record.*append some first"):
        sql.journal(names.journal("empty/"))


def test_journals_of_different_formats_are_refused(sql, create, names):
    create("mixed/a", lines({"n": 1}))
    create("mixed/b", b"1,2\n")
    with pytest.raises(
        SchemaMismatch, match=r"different formats.*CSV: .*mixed/b; JSON: .*mixed/a\)"
    ):
        sql.journal(names.journal("mixed/"))
    assert sql.journal(names.journal("mixed/b")).fetchall() == [("1", "2")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"\x1f\x8b\x08\x00,\n\x01,\n",
            r"gzip: append it decompressed .*--decompress`\), or name other journals",
        ),
        (b"\x66\x33\x93\x36\x05\x00\x00\x00hello", "fixed framing"),
        (b"\x00\xff,\n", "is not text: append JSON lines or CSV in UTF-8"),
        (b"plain\ntext\n", "neither JSON objects nor"),
        (b"x" * (3 << 20), "no line ends within"),
    ],
)
def test_content_that_is_not_a_table_is_refused(sql, create, names, content, says):
    journal = create("odd/a", content)
    with pytest.raises(SchemaMismatch, match=says) as caught:
        sql.journal(names.journal("odd/"))
    assert journal in str(caught.value) or f"journal('{names.journal('odd/')}')" in str(
        caught.value
    )


@pytest.fixture
def gazctl_sql(shared, monkeypatch, tmp_path, capfdbinary):
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_TABLES", "GAZETTE_METASTORE_URI"):
        monkeypatch.delenv(name, raising=False)
    run = gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)
    return lambda *args: run(*args, group="sql")


def test_command_needs_no_folder_of_specs(gazctl_sql, events):
    done = gazctl_sql(f"SELECT kind, count(*) FROM journal('{events}') GROUP BY 1 ORDER BY 1")
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == [b"kind", b"count_star()", b"eu", b"57", b"us", b"33"]
    done = gazctl_sql(f"DESCRIBE journal('{events}')", "-o", "json")
    assert done.err == f"journal('{events}'): JSON, 90 records of 2 journals read\n"
    assert [json.loads(line)["column_name"] for line in done.out.splitlines()][:2] == ["n", "kind"]
    done = gazctl_sql(f"SELECT count(*) FROM journal('{events}')", "--explain")
    assert "90 records" in done.err
    assert f"{events}region=eu: [0, " in done.err


def test_command_notes_what_may_surprise(gazctl_sql, create):
    odd = create("odd", lines({"n": 1}, {"n": 2}), b"oops\n", lines({"n": 3}))
    done = gazctl_sql(f"SELECT count(*), count(n) FROM journal('{odd}')", "-o", "csv")
    assert done.out.splitlines()[1] == b"4,3"
    assert "1 lines are not JSON objects" in done.err
    large = create("large", lines(*({"n": n, "text": "x" * 1000} for n in range(3000))))
    done = gazctl_sql(f"SELECT count(*) FROM journal('{large}')", "-o", "csv")
    assert done.out.splitlines()[1] == b"3000"
    assert "inferred from a part of the content" in done.err


def test_saved_spec_is_a_table(gazctl_sql, events, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    query = f"SELECT kind, count(*) FROM journal('{events}') GROUP BY 1 ORDER BY 1"
    done = gazctl_sql(query, "--save", "shop.events", "--tables", "tables", "-o", "csv")
    assert done.code == 0, done.err
    assert "shop.events: new (tables/shop.events.yaml)" in done.err
    assert "applied the spec that was inferred: shop.events is a table now" in done.err
    spec, errors = read_table_spec((tables / "shop.events.yaml").read_bytes())
    assert errors == []
    assert (spec.name, spec.selector) == ("shop.events", f"name:prefix={events}")
    by_name = gazctl_sql(
        query.replace(f"journal('{events}')", "shop.events"), "--tables", "tables", "-o", "csv"
    )
    assert by_name.out == done.out == b"kind,count_star()\neu,57\nus,33\n"
    # The same once more changes nothing; another one does not take its place.
    again = gazctl_sql(query, "--save", "shop.events", "--tables", "tables")
    assert (again.code, "shop.events: unchanged" in again.err) == (0, True)
    other = gazctl_sql(f"FROM journal('{events}region=eu')", "--save", "shop.events", "--tables", "tables")  # fmt: skip
    assert (other.code, other.out) == (1, b"")
    assert "shop.events exists with another spec (tables/shop.events.yaml)" in other.err
    assert "choose another name" in other.err


def test_spec_that_no_table_can_follow_is_not_saved(gazctl_sql, create, names, tmp_path):
    for name in ("plain/a", "plain/b"):
        create(name, lines({"n": 1}))
    journals = names.journal("plain/")
    done = gazctl_sql(f"FROM journal('{journals}')", "--save", "shop.plain", "--tables", "tables")
    assert (done.code, done.out) == (1, b"n\n1\n1\n")
    assert "note: there is no folder tables of table specs" in done.err
    assert "plain/a and" in done.err
    assert "differ in segment" in done.err
    assert "nothing was applied" in done.err
    assert not (tmp_path / "tables").exists()


def test_save_is_refused_before_rows_are_shown(gazctl_sql, events, tmp_path):
    (tmp_path / "tables").mkdir()
    journal = f"journal('{events}')"
    for query, save, says in (
        ("SELECT 1", "shop.events", "this query has none"),
        (f"FROM {journal}, journal('{events}region=eu')", "shop.events", "saves the one journal"),
        (f"FROM {journal}", "Events", "cannot be a table's name: write it as shop.events"),
    ):
        done = gazctl_sql(query, "--save", save, "--tables", "tables")
        assert (done.code, done.out) == (1, b"")
        assert says in done.err
    done = gazctl_sql(f"FROM {journal}", "--save", "shop.events")
    assert "the folder of table specs is not known" in done.err
    assert list((tmp_path / "tables").iterdir()) == []
