"""Resources that are servers to ask: brokers and Trino."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dagster import ConfigurableResource
from pydantic import Field

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.lake import BrokerSource, FragmentSource
from gazette_platform.lake.trino import TrinoSession

__all__ = ["BrokerResource", "NoSparkResource", "TrinoResource"]

# A tick that cannot reach a broker should say so, and leave the next one to try.
_RETRY_TIMEOUT_S = 20.0


class BrokerResource(ConfigurableResource["BrokerResource"]):
    """Brokers, by the address of one or some of them."""

    address: str = Field(
        description="Endpoint URL of any broker, for example http://host:8080; or of several, with "
        "commas between them."
    )
    zone: str = Field(default="local", description="Zone of this process, for near reads.")

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
        config = ClientConfig.from_environment(
            os.environ, address=self.address, zone=self.zone, retry_timeout_s=_RETRY_TIMEOUT_S
        )
        with Client(config) as client:
            yield client

    @contextmanager
    def source(self) -> Iterator[FragmentSource]:
        """Journals and fragments, as the lake asks for them."""
        with self.client() as client:
            yield BrokerSource(client)


class TrinoResource(ConfigurableResource["TrinoResource"]):
    """Trino, over its DB-API client."""

    uri: str = Field(description="http(s)://host:port of the coordinator.")
    user: str = Field(default="gazette", description="User that Trino sees.")

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement to its end.

        Args:
            sql: one statement, values as ``?``.
            parameters: the values.

        Returns: all rows.
        Raises: LakeError: Trino cannot be reached, or refused. SetupError: none is configured.
        """
        if not self.uri:
            raise SetupError(
                "no Trino is configured: set GAZETTE_TRINO_URI, or GAZETTE_ENDPOINTS to the "
                "endpoints.json of `gazette up`"
            )
        return TrinoSession(self.uri, user=self.user).query(sql, parameters)


class NoSparkResource(ConfigurableResource["NoSparkResource"]):
    """In the place of Spark's resource while Spark is not configured."""

    missing: str = Field(
        default="GAZETTE_METASTORE_URI, or GAZETTE_ENDPOINTS, and GAZETTE_ICEBERG_JAR",
        description="What is to be set.",
    )

    @property
    def spark_session(self) -> Any:
        """Says what is missing.

        Raises: SetupError: always.
        """
        raise SetupError(f"Spark is not configured: set {self.missing}")
