"""Records as Debezium writes them of tables of PostgreSQL and MySQL, and a database that makes them."""

import json

from gazette_platform.lake import parse_table_spec

__all__ = ["Database", "mysql_source", "postgres_source", "spec_of", "wrapped"]

COLUMNS = "id: bigint, name: string"


def postgres_source(lsn, **more):
    return {
        "version": "3.3.1.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1764000000000 + lsn, "snapshot": "false",
        "db": "shop", "sequence": f'["{lsn - 1}","{lsn}"]', "schema": "public", "table": "customers", "txId": 7, "lsn": lsn,
        "xmin": None, **more,
    }  # fmt: skip


def mysql_source(pos, *, file="mysql-bin.000003", row=0, **more):
    return {
        "version": "3.3.1.Final", "connector": "mysql", "name": "shop", "ts_ms": 1764000000000, "snapshot": "false", "db": "shop",
        "sequence": None, "table": "customers", "server_id": 223344, "gtid": None, "file": file, "pos": pos, "row": row,
        "thread": 12, "query": None, **more,
    }  # fmt: skip


def wrapped(payload):
    """A record as Kafka Connect's JSON has it, with its schema."""
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    row = {"type": "struct", "fields": fields, "optional": True, "name": "shop.Value"}
    schema = {"type": "struct", "fields": [row | {"field": "before"}, row | {"field": "after"}]}
    return {"schema": schema, "payload": payload}


def spec_of(columns="id:bigint,name:string", entries="", more="change_data: debezium", key="id"):
    """A table spec whose raw table has envelopes of rows with `columns`."""
    return parse_table_spec(
        f"name: cdc.customers\nselector: 'name:prefix=cdc/'\nformat: json\ncolumns:\n"
        f'- {{name: before, type: "struct<{columns}>"}}\n- {{name: after, type: "struct<{columns}>"}}\n'
        f"- {{name: op, type: string}}\ntyped:\n  {more}\n  key: [{key}]\n{entries}"
    ).typed


class Database:
    """A table with a key, and the events that Debezium sends for its changes.

    Args:
        source: makes a record's `source` of a position.
        wraps: whether records have their schema with them.
    """

    def __init__(self, source=postgres_source, *, wraps=False):
        self.rows = {}
        self.told = []
        self._source = source
        self._wraps = wraps
        self._position = 24_000_000

    def upsert(self, key, name):
        """Insert a row, or update the one that there is."""
        before, row = self.rows.get(key), {"id": key, "name": name}
        self._tell("c" if before is None else "u", before, row)
        self.rows[key] = row

    def delete(self, key):
        before = self.rows.pop(key, None)
        if before is not None:
            self._tell("d", before, None)
            self.told.append(None)  # a tombstone

    def move(self, key, to):
        """Change a row's key, as Debezium reports it: a deletion, a tombstone and an insert at one position."""
        if key not in self.rows or to in self.rows:
            return
        before = self.rows.pop(key)
        self._tell("d", before, None)
        self.told.append(None)
        self.rows[to] = before | {"id": to}
        self._tell("c", None, self.rows[to], step=0)

    def rename_key(self, key, to):
        """The same as one update, as connectors send it whose key differs from the table's."""
        if key in self.rows and to not in self.rows:
            before = self.rows.pop(key)
            self.rows[to] = before | {"id": to}
            self._tell("u", before, self.rows[to])

    def truncate(self):
        self.rows.clear()
        self._tell("t", None, None)

    def snapshot(self):
        for row in self.rows.values():
            self._tell("r", None, row)

    def message(self):
        """A message of the log, a heartbeat, and the begin of a transaction."""
        self._tell("m", None, None)
        self.told.append({"ts_ms": 1764000000000})
        self.told.append({"status": "BEGIN", "id": "571", "ts_ms": 1764000000000})

    def _tell(self, op, before, after, *, step=1):
        self._position += step
        found = {"before": before, "after": after, "source": self._source(self._position), "op": op}
        found["ts_ms"] = 1764000000001
        self.told.append(wrapped(found) if self._wraps else found)

    def lines(self):
        """Return the events, as lines of a journal."""
        return [json.dumps(one).encode() + b"\n" for one in self.told]
