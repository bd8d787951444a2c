"""PyIceberg's catalog in a database, such that no call waits for ever, no connection stays, and the password stays where it is.

The tables are those of Iceberg's JDBC catalog, so engines read and write the same. PyIceberg's own client keeps
connections that a database which was started again has dropped, and has no time-outs; here each call has a connection of its own, and a run makes
a few, and one whose answer does not come is closed: what it has begun is then rolled back, or was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gazette_platform.errors import LakeError
from gazette_platform.lake.catalog_settings import ANSWER_S, CONNECT_S
from gazette_platform.ops.extras import bounded_connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from sqlalchemy.engine import Engine

    from gazette_platform.lake.catalog_settings import CatalogLogin, IcebergCatalog


def sql_catalog(
    catalog: IcebergCatalog,
    login: CatalogLogin,
    warehouse: str,
    io_properties: Mapping[str, str],
    *,
    answer_s: float = ANSWER_S,
) -> Catalog:
    """A client of a database, whose tables of the catalog are made if there are none.

    Args:
        login: who asks.
        warehouse: location of tables.
        io_properties: how PyIceberg reaches files.
        answer_s: seconds to wait for an answer.

    Raises: LakeError: the database cannot be reached, or does not let us in. ImportError: there is no psycopg.
    """
    engine = _engine(catalog, login, answer_s)
    properties = {"warehouse": warehouse, **io_properties}
    try:
        # PyIceberg takes any failure for a sign that there are no tables yet.
        engine.connect().close()
        try:
            return _SqlClient(catalog.name, engine, properties)
        except SQLAlchemyError:
            # Another one may have made the tables at the same time.
            return _SqlClient(catalog.name, engine, properties)
    except SQLAlchemyError as err:
        raise LakeError(
            f"the catalog in {catalog.uri} cannot be asked ({str(err).partition(chr(10))[0]}): see that the database "
            "runs, and that GAZETTE_ICEBERG_PASSWORD is of that user, who may make tables"
        ) from err


@final
class _SqlClient(SqlCatalog):
    """PyIceberg's, with an engine of ours: neither address nor password are among its properties."""

    def __init__(self, name: str, engine: Engine, properties: Mapping[str, str]) -> None:
        MetastoreCatalog.__init__(self, name, **properties, schema_version="v1")
        self.engine = engine
        self._init_catalog()


def _engine(catalog: IcebergCatalog, login: CatalogLogin, answer_s: float) -> Engine:
    url = make_url(catalog.uri)
    if not catalog.is_postgres:
        return create_engine(url, poolclass=NullPool)
    connection = bounded_connection(answer_s)
    url = url.set(drivername="postgresql+psycopg", password=login.password or None)
    connect_s = max(1, round(min(CONNECT_S, answer_s)))
    more = {"connect_timeout": str(connect_s), "application_name": "gazette-platform"}
    engine = create_engine(url.update_query_dict(more), poolclass=NullPool)

    def connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        return connection.connect(*arguments, **named)

    event.listen(engine, "do_connect", connect)
    return engine
