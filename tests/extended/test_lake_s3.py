"""Registration, overlaps and repair of tables whose fragments lie on a real S3 server."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace

import pytest
from bucket_files import BucketFiles, put
from lake_bench import MemoryMetastore
from object_servers import need_go, s3_server, use_keys

from gazette_platform.errors import ObjectNotFound
from gazette_platform.lake import (
    Auditor,
    JournalCursor,
    Registrar,
    Repairer,
    Shrinker,
    StoreRoots,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.applying_specs import why_doubled
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.set_aside import SetAside
from gazette_platform.lake.reading.storage import Storage, StoreFiles, object_files
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec

# The first test may build the server.
pytestmark = [pytest.mark.s3, pytest.mark.timeout(900)]

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=a%3Db+c"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    need_go("GAZETTE_VERSITYGW")
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def keys(server, monkeypatch, tmp_path):
    use_keys(server, monkeypatch, tmp_path)


@pytest.fixture
def bucket(server):
    name = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(name)
    return server.folder / name


@pytest.fixture
def store(server, bucket):
    return f"s3://{bucket.name}/lake/?endpoint={server.endpoint}&region=us-east-1"


def lines(begin, end):
    return b"".join(b'{"id":%d}\n' % (n % 10) for n in range(begin, end))


class Lake:
    """A journal of lines of 9 bytes in a bucket; `plant` stores what brokers do not list."""

    def __init__(self, tmp_path, store, bucket):
        self.bucket, self.store = bucket, store
        self.files = BucketFiles(tmp_path / "fragments", store)
        self.metastore = MemoryMetastore()
        self.roots = StoreRoots({})
        self.registrar = Registrar(self.files, self.metastore, self.roots)
        self.auditor = Auditor(self.files, self.roots)
        self.spec = parse_table_spec(SPEC)

    def append(self, begin, end, *, hour=5, content=None):
        content = lines(begin, end) if content is None else content
        return self.files.append(JOURNAL, content, postfix=f"hour={hour:02}", begin=9 * begin)

    def plant(self, begin, end, **options):
        planted = self.append(begin, end, **options)
        self.files.forget(planted)
        return planted

    def register(self):
        return self.registrar.tick(self.spec, {})

    def audit(self, **options):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return self.auditor.audit(session, table, JOURNAL, **options)

    def kinds(self, **options):
        return sorted((f.kind, f.is_error, f.is_checked) for f in self.audit(**options).findings)

    def repair(self, findings):
        repairer = Repairer(self.files, self.roots)
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return repairer.repair(session, table, findings, {JOURNAL: JournalCursor(1 << 40)})

    def states(self):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return {
                p.values[1]: (p.location, PartitionState.from_parameters(p.parameters))
                for p in session.partitions(table)
            }

    def put_state(self, hour, state):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            (part,) = [p for p in session.partitions(table) if p.values[1] == hour]
            found = replace(part, parameters=state.within(part.parameters))
            session.alter_partitions(table, [found])

    def object(self, path):
        return self.bucket / "lake" / path

    def look(self, cursors):
        """Have accounts follow a prune."""
        shrinker = Shrinker(self.files, self.roots)
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            journal = shrinker.journal(JOURNAL)
            return shrinker.look(session, self.spec, table, journal, cursors[JOURNAL])


@pytest.fixture
def lake(tmp_path, store, bucket):
    return Lake(tmp_path, store, bucket)


def test_accounts_follow_a_prune_but_not_a_bucket_that_is_gone(lake):
    made = [lake.append(n, n + 1, hour=5 + n // 2) for n in range(6)]
    cursors = lake.register().cursors
    for fragment in made[:3]:
        lake.files.forget(fragment)
        lake.object(fragment.content_path).unlink()
    away = lake.bucket.with_name("away")
    lake.bucket.rename(away)
    found = lake.look(cursors)
    assert (found.shrunk, len(found.doubts)) == (0, 2)
    assert all("its files cannot be listed" in doubt for doubt in found.doubts)
    # Another one of that name is empty.
    lake.bucket.mkdir()
    found = lake.look(cursors)
    assert found.shrunk == 0
    lake.bucket.rmdir()
    away.rename(lake.bucket)
    found = lake.look(cursors)
    assert (found.shrunk, found.doubts) == (2, [])
    assert [a.key for a in found.emptied] == ["part=a%253Db+c/hour=5"]
    state = lake.states()["6"][1]
    assert (state.ranges, state.fragments, state.rows) == (((27, 36),), 1, 1)
    assert state.stored_bytes == lake.object(made[3].content_path).stat().st_size


UNCHECKED = [("count", False, False), ("overlap", False, False)]


def test_fragments_are_read_in_the_bucket_and_counted_as_on_files(lake):
    first = lake.append(0, 2)
    second = lake.append(2, 40)
    report = lake.register()
    assert report.errors == []
    (location, state) = lake.states()["5"]
    assert location == f"s3://{lake.bucket.name}/lake/{JOURNAL}/hour=05"
    assert (state.rows, state.fragments) == (40, 2)
    sizes = [lake.object(f.content_path).stat().st_size for f in (first, second)]
    assert state.stored_bytes == sum(sizes)
    assert lake.files.read_through_brokers == 0


def test_listing_is_asked_for_and_what_was_not_listed_is_not_green(lake):
    lake.append(0, 2)
    lake.append(2, 4, hour=6)
    lake.register()
    # As the metastore of Hive, and consoles, make them for folders.
    (lake.object(f"{JOURNAL}/hour=05") / "hour=05").mkdir()
    assert lake.kinds() == UNCHECKED
    assert lake.kinds(lists_objects=True) == []
    planted = lake.plant(1, 2)
    put(lake.store, f"{JOURNAL}/hour=06/notes.txt", b"x")
    put(lake.store, f"{JOURNAL}/hour=06/_hidden", b"x")
    gone = lake.append(4, 5, hour=6)
    lake.register()
    object_files(lake.store).remove(gone.content_path)
    assert lake.kinds() == UNCHECKED
    found = lake.audit(lists_objects=True).findings
    assert sorted((f.kind, f.begin, f.excluded) for f in found) == [
        ("count", 0, ""),
        ("count", 36, ""),
        ("overlap", 9, planted.content_name),
    ]


def test_overlaps_are_found_from_accounts_and_only_their_folders_are_listed(lake, monkeypatch):
    small = lake.append(0, 2)
    lake.append(2, 4, hour=6)
    for hour in range(7, 12):
        lake.append(4 * hour, 4 * hour + 4, hour=hour)
    lake.register()
    lake.append(0, 4, hour=6)
    lake.register()
    lake.files.forget(small)
    listed = []
    lists = Storage.files

    def files(self, store):
        found = lists(self, store)
        monkeypatch.setattr(type(found), "list", noted)
        return found

    plain = type(object_files(lake.store)).list

    def noted(self, directory):
        listed.append(directory)
        return plain(self, directory)

    monkeypatch.setattr(Storage, "files", files)
    findings = lake.audit().findings
    assert sorted(listed) == [f"{JOURNAL}/hour=05", f"{JOURNAL}/hour=06"]
    excluded = excluded_files(findings)
    assert small.content_name in excluded[JOURNAL.partition("=")[2], "5"]


def test_covered_objects_are_moved_by_copy_and_accounts_follow(lake):
    small = lake.append(0, 2)
    lake.append(2, 3)
    lake.register()
    large = lake.append(0, 3, hour=6)
    lake.files.forget(small)
    lake.register()
    findings = lake.audit().findings
    stored = lake.object(small.content_path).read_bytes()
    (moved,) = lake.repair(findings).moved
    assert moved.target.startswith(f".covered/{small.content_path} of s3://")
    assert lake.object(f".covered/{small.content_path}").read_bytes() == stored
    assert not lake.object(small.content_path).exists()
    assert lake.object(large.content_path).exists()
    assert moved.rows == 2
    assert lake.states()["5"][1].rows == 1
    # Restored by a person, and found again: both are kept.
    put(lake.store, small.content_path, stored)
    again = lake.audit(lists_objects=True).findings
    (moved,) = lake.repair(again).moved
    assert f"{small.content_name}~2" in moved.target


@pytest.mark.parametrize("when", ["before the copy", "after the copy", "after the move"])
def test_a_repair_that_was_killed_is_found_again_without_a_cursor(lake, monkeypatch, when):
    small = lake.append(0, 2)
    lake.append(2, 3)
    lake.register()
    lake.append(0, 3, hour=6)
    lake.files.forget(small)
    lake.register()
    files = object_files(lake.store)
    move = type(files).move

    def killed(self, *arguments):
        if when == "after the move":
            move(self, *arguments)
        raise KeyboardInterrupt

    name = "remove" if when == "after the copy" else "move"
    with monkeypatch.context() as patch:
        patch.setattr(type(files), name, killed)
        with pytest.raises(KeyboardInterrupt):
            lake.repair(lake.audit().findings)
    # The accounts are those of brokers, and of all that is to be seen without a listing.
    state = lake.states()["5"][1]
    assert (state.fragments, state.rows) == (1, 1)
    findings = lake.audit().findings
    excluded = [name for names in excluded_files(findings).values() for name in names]
    if when == "after the move":
        assert small.content_name not in excluded
    else:
        assert small.content_name in excluded
        (moved,) = lake.repair(findings).moved
        assert moved.target.startswith(f".covered/{small.content_path} of")
        assert lake.states()["5"][1] == replace(state, moving=())
    assert not lake.object(small.content_path).exists()
    assert lake.object(f".covered/{small.content_path}").exists()
    assert not lake.object(f".covered/{small.content_path}~2").exists()
    findings = lake.audit(lists_objects=True).findings
    assert small.content_name not in {f.excluded for f in findings}


def half_moved(lake, monkeypatch, findings):
    """Kill a repair between the copy of a file and its removal."""
    with monkeypatch.context() as patch:
        patch.setattr(type(object_files(lake.store)), "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.repair(findings)


def killed(*_):
    raise KeyboardInterrupt


def test_a_move_out_of_a_dropped_hive_partition_is_found_after_a_kill(lake, monkeypatch):
    """The Hive partition goes between the audit and the move, and comes back with a later fragment."""
    small = lake.append(0, 2)
    lake.register()
    lake.append(0, 3, hour=6)
    lake.files.forget(small)
    lake.register()
    findings = lake.audit().findings
    with lake.metastore.connect() as session:
        table = session.table("s", "events")
        book = AccountBook(session, table)
        (entry,) = [each for each in book.every() if each.values[1] == "5"]
        session.drop_partitions(table, [entry.name])
    half_moved(lake, monkeypatch, findings)
    lake.append(3, 4)
    lake.register()
    state = lake.states()["5"][1]
    assert (state.fragments, state.rows) == (1, 1)
    again = lake.audit().findings
    assert [f.excluded for f in again if f.excluded == small.content_name]
    (moved,) = lake.repair(again).moved
    assert moved.target.startswith(f".covered/{small.content_path} of")
    assert not lake.object(small.content_path).exists()
    assert lake.states()["5"][1] == replace(state, moving=())


def test_a_table_is_not_made_again_while_only_its_accounts_know_of_a_move(lake, monkeypatch):
    small = lake.append(0, 2)
    lake.append(2, 3)
    lake.register()
    lake.append(0, 3, hour=6)
    lake.files.forget(small)
    lake.register()

    def begun():
        with lake.metastore.connect() as session:
            book = AccountBook(session, session.table("s", "events"))
            stores = {JOURNAL: [lake.store]}
            return why_doubled(book.every(), stores, lake.roots, Storage(lake.roots))

    assert begun() == ""
    half_moved(lake, monkeypatch, lake.audit().findings)
    assert small.content_path in begun()
    lake.repair(lake.audit().findings)
    assert begun() == ""
    # Killed after the move: the account names the file, and the file has gone.
    lake.put_state("5", replace(lake.states()["5"][1], moving=(small.content_name,)))
    assert begun() == ""


def test_what_accounts_differ_in_is_listed_once_until_something_changes(lake, monkeypatch):
    """After a prune that looks like an unreachable store, for example."""
    gone = lake.append(0, 2)
    lake.append(2, 4)
    lake.append(4, 6, hour=6)
    lake.register()
    lake.files.forget(gone)
    object_files(lake.store).remove(gone.content_path)
    listed = []
    plain = StoreFiles.list

    def noted(self, directory):
        listed.append(directory)
        return plain(self, directory)

    monkeypatch.setattr(StoreFiles, "list", noted)
    for _ in range(5):
        assert lake.kinds() == UNCHECKED
    assert listed == [f"{JOURNAL}/hour=05"]
    lake.append(6, 9)
    assert lake.kinds() == UNCHECKED
    assert len(listed) == 2
    # What was found to be wrong is looked at each time.
    planted = lake.plant(2, 3)
    lake.append(9, 10)
    for _ in range(2):
        found = lake.audit(known={f"{JOURNAL}/hour=05"}).findings
        assert [f.excluded for f in found if f.excluded] == [planted.content_name]
    assert len(listed) == 4


def test_a_file_of_a_codec_that_engines_take_for_text_is_found_without_a_listing(lake):
    lake.append(0, 2)
    lake.register()
    codec = CompressionCodec.SNAPPY
    lake.files.create(JOURNAL, codec=codec)
    bad = lake.files.append(JOURNAL, lines(2, 4), postfix="hour=05", codec=codec)
    assert "codec SNAPPY" in lake.register().errors[0]
    excluded = excluded_files(lake.audit().findings)
    assert list(excluded.values()) == [[bad.content_name]]


def test_a_store_that_refuses_us_is_read_through_brokers_and_says_so(lake, server, monkeypatch):
    lake.append(0, 3)
    server.add_user("nobody", "nobody-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody-secret")
    object_files.cache_clear()
    lake.register()
    (_, state) = lake.states()["5"]
    assert (state.rows, state.stored_bytes) == (3, None)
    assert lake.files.read_through_brokers > 0
    audit = lake.audit(lists_objects=True)
    assert sorted((f.kind, f.is_error, f.is_checked) for f in audit.findings) == UNCHECKED
    assert "allow it to the credentials" in audit.findings[0].text
    object_files.cache_clear()


def test_what_a_store_does(lake, store):
    files = object_files(store)
    content = os.urandom(3 << 20)
    put(store, "j/x/large", content)
    assert (files.size("j/x/large"), files.is_local) == (3 << 20, False)
    assert b"".join(files.read("j/x/large")) == content
    assert b"".join(files.read("j/x/large", 5, 9)) == content[5:9]
    assert b"".join(files.read("j/x/large", (3 << 20) - 2, 4 << 20)) == content[-2:]
    assert b"".join(files.read("j/x/large", (1 << 20) + 7)) == content[(1 << 20) + 7 :]
    assert list(files.read("j/x/large", 4 << 20, 5 << 20)) == []
    files.copy("j/x/large", "k/y")
    assert files.exists("k/y")
    assert [(i.path, i.size) for i in files.list("j/x")] == [("large", 3 << 20)]
    assert files.list("j") == []
    assert files.list("absent") == []
    files.remove("k/y")
    with pytest.raises(ObjectNotFound):
        files.size("k/y")
    with pytest.raises(ObjectNotFound):
        list(files.read("k/y"))


def test_an_object_is_set_aside_and_taken_back(lake):
    bad = lake.append(0, 4)
    lake.append(4, 6)
    lake.register()
    work = SetAside(lake.files, lake.roots, SystemClock())
    with lake.metastore.connect() as session:
        done = work.set_aside(session, lake.spec, bad, "no good")
        aside = replace(bad, path_postfix="_aside/hour=05")
        assert (done.rows, lake.states()["5"][1].rows) == (4, 2)
        assert not lake.object(bad.content_path).exists()
        assert lake.object(aside.content_path).is_file()
        assert work.described("s.events", aside).why == "no good"
        back = work.restore(session, lake.spec, aside)
    assert back.path == bad.content_path
    assert lake.object(bad.content_path).is_file()
    assert not lake.object(aside.content_path).exists()
    lake.register()
    assert lake.states()["5"][1].rows == 6
