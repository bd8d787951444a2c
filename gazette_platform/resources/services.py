"""Resources that are servers to ask: brokers and Trino."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import ConfigurableResource
from pydantic import Field

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.lake import BrokerSource, FragmentSource
from gazette_platform.lake.catalogs import HIVE, ICEBERG, TrinoCatalogs
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession

# A tick that cannot reach a broker should say so, and leave the next one to try.
_RETRY_TIMEOUT_S = 20.0


class BrokerResource(ConfigurableResource["BrokerResource"]):
    """Brokers, by the address of one or some of them."""

    address: str = Field(
        description="Endpoint URL of any broker, for example http://host:8080; or of several, with "
        "commas between them."
    )
    zone: str = Field(default="local", description="Zone of this process, for near reads.")
    file_root: str = Field(
        default="",
        description="Folder that file:/// stores are rooted at: fragments are read from there, if it is here.",
    )

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A connected client, closed at the end of the scope.

        Raises: SetupError: no address is configured.
        """
        if not self.address:
            raise SetupError(
                "no broker is configured: set GAZETTE_BROKER_ADDRESS, or GAZETTE_ENDPOINTS to the "
                "endpoints.json of `gazette up`"
            )
        # Tokens, keys and certificates come from the variables that gazctl reads.
        root = Path(self.file_root)
        config = ClientConfig.from_environment(
            os.environ,
            address=self.address,
            zone=self.zone,
            retry_timeout_s=_RETRY_TIMEOUT_S,
            file_root=root if self.file_root and root.is_dir() else None,
        )
        with Client(config) as client:
            yield client

    @contextmanager
    def source(self) -> Iterator[FragmentSource]:
        """Journals and fragments, as the lake asks for them."""
        with self.client() as client:
            yield BrokerSource(client)


class TrinoResource(ConfigurableResource["TrinoResource"]):
    """Trino, over its DB-API client.

    Passwords and tokens are not part of it, since Dagster shows resources: they are taken from the
    environment at each query, as `TrinoLogin.from_environment` reads it.
    """

    uri: str = Field(description="http(s)://host:port of the coordinator.")
    user: str = Field(
        default="", description="User that Trino sees; empty: as GAZETTE_TRINO_USER says."
    )
    catalog: str = Field(default=HIVE, description="Name of its catalog of raw tables.")
    iceberg_catalog: str = Field(default=ICEBERG, description="Name of that of Iceberg tables.")
    typed_catalog: str = Field(
        default="", description="Name of that of typed tables; empty: the same."
    )

    @property
    def catalogs(self) -> TrinoCatalogs:
        """What it calls its catalogs."""
        return TrinoCatalogs(
            hive=self.catalog, iceberg=self.iceberg_catalog, typed=self.typed_catalog
        )

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement to its end.

        Args:
            sql: one statement, values as ``?``.
            parameters: the values.

        Returns: all rows.
        Raises: LakeError: Trino cannot be reached, or refused. SetupError: none is configured, or a
            file of the login cannot be read. ValidationError: the login is malformed.
        """
        if not self.uri:
            raise SetupError(
                "no Trino is configured: set GAZETTE_TRINO_URI, or GAZETTE_ENDPOINTS to the "
                "endpoints.json of `gazette up`"
            )
        login = TrinoLogin.from_environment(os.environ, user=self.user)
        return TrinoSession(self.uri, login=login).query(sql, parameters)
