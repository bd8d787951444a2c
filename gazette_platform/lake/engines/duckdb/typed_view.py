"""Typed tables in DuckDB: rows that runs have published and the tail after them, as one view over two data sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.lake.engines.duckdb.names import (
    DELETES_SUFFIX,
    HISTORY_SUFFIX,
    TAIL_SUFFIX,
    quoted,
)
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from duckdb import DuckDBPyConnection

    from gazette_platform.client import Client
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.typed.planning.ranges import Hole
    from gazette_platform.lake.typed.runs.tail import PinnedTail
    from gazette_platform.ops.clock import Clock

_THREADS: Final = min(4, os.cpu_count() or 1)


@final
@dataclass(frozen=True, slots=True)
class JournalSeam:
    """A journal of a typed table."""

    journal: str
    offset: int
    """The seam: messages before are in the table, except for those of transactions that were open there."""
    head: int
    """Byte offset; what was appended later is not in the query."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSeam:
    """A typed table as a query saw it: where its rows end, and the tail."""

    table: str
    """``schema.table``."""
    snapshot_id: int | None
    """Of the table; None: it had none."""
    journals: tuple[JournalSeam, ...]
    holes: tuple[Hole, ...]
    """Bytes that no broker or store holds. Messages after them are not rows, as no run converts them."""
    quarantined: int | None
    """Records of the tail that cannot be rows; None: it was not read."""
    files: int
    """Of the table, that were opened."""
    taken_at: datetime
    """Aware, UTC."""


@final
class TypedView:
    """A typed table as it was pinned, in DuckDB.

    Args:
        name: ``schema.table``.
        pinned: the table, and where its tail is.
        failed: called with why a scan fails.
    """

    def __init__(
        self, name: str, pinned: PinnedTail, failed: Callable[[BaseException], None]
    ) -> None:
        from gazette_platform.lake.engines.duckdb.typed_dataset import (  # noqa: PLC0415  slow to import
            HistoryDataset,
            TailDataset,
        )

        self._name = name
        self._pinned = pinned
        self._history = HistoryDataset(pinned.loaded, pinned.schema, failed)
        self._deletes = HistoryDataset(pinned.deletes, pinned.schema, failed)
        self._tail = TailDataset(pinned, failed, threads=_THREADS)

    @property
    def is_read(self) -> bool:
        """Whether it was scanned, since `begin`."""
        return bool(self._history.scans or self._tail.scans)

    @property
    def is_held(self) -> bool:
        """Whether its tail is on the local disk, until `close`."""
        return self._tail.quarantined is not None

    @property
    def seam(self) -> TypedSeam:
        """What queries see of it."""
        pinned = self._pinned
        before = pinned.before.journals
        return TypedSeam(
            table=self._name,
            snapshot_id=pinned.snapshot_id,
            journals=tuple(
                JournalSeam(
                    one.name,
                    before[one.name].offset if one.name in before else one.begin,
                    one.head,
                )
                for one in pinned.journals
            ),
            holes=pinned.holes,
            quarantined=self._tail.quarantined,
            files=self._history.files,
            taken_at=pinned.asked_at,
        )

    def begin(self) -> None:
        """Forget what scans there were."""
        self._history.scans = self._tail.scans = self._history.files = 0

    def make(
        self,
        connection: DuckDBPyConnection,
        database: str,
        short: str,
        *,
        is_filtered: bool = True,
    ) -> None:
        """Make its views, or have those that there are show this.

        Args:
            connection: to DuckDB.
            database: that has the schema.
            short: what it is called without a schema.
            is_filtered: as of `selected`.
        """
        from gazette_platform.lake.engines.duckdb.dataset import selected  # noqa: PLC0415
        from gazette_platform.lake.engines.duckdb.typed_dataset import uuid_columns  # noqa: PLC0415
        from gazette_platform.lake.typed.iceberg_types import arrow_schema  # noqa: PLC0415
        from gazette_platform.lake.typed.planning.last_rows import view_of  # noqa: PLC0415

        schema = arrow_schema(self._pinned.schema)
        uuids = set(uuid_columns(schema))
        listed = ", ".join(
            f"CAST({quoted(field.name)} AS UUID) AS {quoted(field.name)}"
            if field.name in uuids
            else selected([field], is_filtered=is_filtered)
            for field in schema
        )
        parts = {
            HISTORY_SUFFIX: self._history, TAIL_SUFFIX: self._tail, DELETES_SUFFIX: self._deletes,
        }  # fmt: skip
        for suffix, rows in parts.items():
            connection.register(f"{self._name}{suffix}", rows)
            registered = f"temp.main.{quoted(self._name + suffix)}"
            query = f"SELECT {listed} FROM {registered}"  # noqa: S608  names of ours
            connection.execute(f"CREATE OR REPLACE VIEW {self._place(database, suffix)} AS {query}")
        history, tail, deletes = (self._place(database, suffix) for suffix in parts)
        if self._pinned.is_empty:
            query = f"FROM {history}"
        else:
            query = view_of(
                schema.names,
                self._pinned.key,
                history,
                tail,
                quoted,
                changes=self._pinned.job.spec.changes,
                deletes=deletes if self._pinned.deletes is not None else "",
            )
        for view in (f"VIEW {self._place(database)}", f"TEMP VIEW {quoted(short)}"):
            connection.execute(f"CREATE OR REPLACE {view} AS {query}")

    def drop(self, connection: DuckDBPyConnection, database: str, short: str) -> None:
        """Remove its views; arguments are those of `make`."""
        for suffix in ("", HISTORY_SUFFIX, TAIL_SUFFIX, DELETES_SUFFIX):
            connection.execute(f"DROP VIEW IF EXISTS {self._place(database, suffix)}")
        connection.execute(f"DROP VIEW IF EXISTS temp.main.{quoted(short)}")

    def close(self) -> None:
        """Forget what was read of the tail."""
        self._tail.close()

    def _place(self, database: str, suffix: str = "") -> str:
        schema, _, table = self._name.partition(".")
        return f"{database}.{quoted(schema)}.{quoted(table + suffix)}"


@final
class TypedViews:
    """Typed tables of specs, as they are pinned for queries.

    Args:
        specs: of raw tables, by the names of the typed ones.
        client: of brokers.
        open_catalog: has the tables; asked once there is a query of one. None: there are none.
        failed: called with why a scan fails.
        clock: dates views.
    """

    def __init__(
        self,
        specs: Mapping[str, TableSpec],
        *,
        client: Client,
        open_catalog: Callable[[], TypedCatalog] | None,
        failed: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        self.specs = specs
        self.views: dict[str, TypedView] = {}
        """Those that queries were of, as they saw them."""
        self._client = client
        self._open_catalog = open_catalog
        self._failed = failed
        self._clock = clock
        self._catalog: TypedCatalog | None = None
        # The previous query may still be reading its rows.
        self._former: list[TypedView] = []

    def pin(self, name: str) -> TypedView:
        """The table as it is now, in the place of what it was.

        Raises: SetupError: a library is missing, or a setting. Others: as `pin_tail`.
        """
        required("pyiceberg", extra="lake", by="typed tables")
        from gazette_platform.lake.typed.runs.tail import pin_tail  # noqa: PLC0415  slow to import

        if self._catalog is None:
            assert self._open_catalog is not None  # else there are no specs
            self._catalog = self._open_catalog()
        raw = self.specs[name]
        assert raw.typed is not None  # it has that name
        handle = self._catalog.handle(name)
        pinned = pin_tail(handle, raw.typed, raw, self._client, clock=self._clock)
        self.forget(name)
        self.views[name] = TypedView(name, pinned, self._failed)
        return self.views[name]

    def begin(self) -> None:
        """Forget what scans there were, before a query."""
        while self._former:
            self._former.pop().close()
        for view in self.views.values():
            view.begin()

    def seams(self) -> dict[str, TypedSeam]:
        """Of tables that were scanned, since `begin`."""
        return {name: view.seam for name, view in self.views.items() if view.is_read}

    def forget(self, name: str) -> TypedView | None:
        """Have no view of a table any more. Returns: the one that there was."""
        view = self.views.pop(name, None)
        if view is not None and view.is_held:
            self._former.append(view)
        return view

    def close(self) -> None:
        """Forget what was read of tails."""
        for view in (*self._former, *self.views.values()):
            view.close()
