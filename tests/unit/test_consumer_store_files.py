"""Files that a store finds in a recovered folder: its own, another store's, or an application's."""

from __future__ import annotations

import pytest

from gazette_platform.consumer.store.base import check_files
from gazette_platform.errors import DataError

OF = {
    "SQLiteStore": ["primary.db", "primary.db-wal"],
    "JSONFileStore": ["state.json"],
    "RocksDBStore": ["CURRENT", "MANIFEST-000004", "000005.log", "000007.sst", "OPTIONS-000006"],
}


@pytest.fixture
def folder(tmp_path):
    def made(*names):
        for name in names:
            (tmp_path / name).write_bytes(b"")
        return tmp_path

    return made


@pytest.mark.parametrize("store", OF)
def test_own_files_and_those_of_the_application_are_accepted(folder, store):
    check_files(folder(), store)
    check_files(folder(".fnodes"), store)
    check_files(folder(*OF[store], "model.bin"), store)


@pytest.mark.parametrize(
    ("store", "names"),
    [
        ("JSONFileStore", ["next.json"]),
        ("RocksDBStore", ["MANIFEST-000001.next", "000004.log"]),
        ("SQLiteStore", ["primary.db.renewed"]),
    ],
)
def test_files_of_first_commit_cut_short_are_accepted(folder, store, names):
    check_files(folder(*names), store)


@pytest.mark.parametrize("store", OF)
def test_database_of_gazettes_sqlite_store_is_refused(folder, store):
    with pytest.raises(DataError, match="look like those of a SQLite store of Gazette"):
        check_files(folder("pageDB", *OF[store]), store)


@pytest.mark.parametrize("store", OF)
def test_files_of_an_unknown_store_are_refused(folder, store):
    with pytest.raises(DataError, match=r"does not write \(a, b, c, d, …\)\. With a"):
        check_files(folder(*"abcde"), store)
