"""The lake as a component of Dagster: raw tables, their checks, sensors and rollups by a ``defs.yaml``.

    type: gazette_platform.components.GazetteLake
    attributes:
      tables: tables
      rollups: rollups
      broker: "{{ env.GAZETTE_BROKER_ADDRESS }}"

What it does is all in `gazette_platform.definitions.lake_definitions`, which projects without components call.
"""

import importlib
import json
import os
from pathlib import Path
from typing import Any

from dagster import (
    Component,
    ComponentLoadContext,
    ComponentTypeSpec,
    Definitions,
    Model,
    Resolvable,
)
from dagster.components import Scaffolder, ScaffoldRequest, scaffold_component, scaffold_with
from pydantic import Field
from typing_extensions import override

from gazette_platform.definitions import lake_definitions
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.rollups import PythonRollup
from gazette_platform.lake.rollups.spec import ENGINES

# Variable by attribute, of those that are text. Paths are of files and folders beside the defs.yaml.
_PATHS = {
    "endpoints": "GAZETTE_ENDPOINTS",
    "tables": "GAZETTE_TABLES",
    "rollups": "GAZETTE_ROLLUPS",
    "spark_properties": "GAZETTE_SPARK_PROPERTIES",
}
_TEXTS = {
    "broker": "GAZETTE_BROKER_ADDRESS",
    "metastore": "GAZETTE_METASTORE_URI",
    "trino": "GAZETTE_TRINO_URI",
    "trino_catalog": "GAZETTE_TRINO_CATALOG",
    "trino_iceberg_catalog": "GAZETTE_TRINO_ICEBERG_CATALOG",
    "trino_typed_catalog": "GAZETTE_TRINO_TYPED_CATALOG",
    "iceberg_catalog": "GAZETTE_ICEBERG_CATALOG",
    "warehouse": "GAZETTE_WAREHOUSE",
    "store": "GAZETTE_LAKE_STORE",
    "iceberg_jar": "GAZETTE_ICEBERG_JAR",
    "jdbc_jar": "GAZETTE_JDBC_JAR",
    "s3_jars": "GAZETTE_S3_JARS",
    "spark_master": "GAZETTE_SPARK_MASTER",
    "dagster": "GAZETTE_DAGSTER_URI",
    "table_url": "GAZETTE_TABLE_URL",
}


class _LakeScaffolder(Scaffolder[Any]):
    """What ``dg scaffold defs gazette_platform.components.GazetteLake NAME`` writes."""

    @override
    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write a defs.yaml, and make the folders that it names."""
        scaffold_component(request, {"tables": "tables", "rollups": "rollups"})
        for folder in ("tables", *(f"rollups/{engine}" for engine in ENGINES)):
            (request.target_path / folder).mkdir(parents=True, exist_ok=True)


@scaffold_with(_LakeScaffolder)
class GazetteLake(Component, Model, Resolvable):
    """Raw tables of journals, with checks, the sensor that fills them, and rollups. Once in a project.

    An attribute that is not given, or is empty, is as the environment says: see `gazette_platform.lake.settings`.
    """

    endpoints: str | None = Field(
        default=None, description="endpoints.json of a `gazette up`, which has all addresses."
    )
    tables: str | None = Field(default=None, description="Folder of table specs, *.yaml.")
    rollups: str | None = Field(
        default=None, description="Folder of rollups, trino/*.sql and spark/*.sql."
    )
    functions: list[str] = Field(
        default_factory=list, description="Rollups in Python: module.name of each."
    )
    broker: str | None = Field(
        default=None, description="http://host:port of a broker, or of several, with commas."
    )
    metastore: str | None = Field(default=None, description="thrift://host:port.")
    trino: str | None = Field(default=None, description="http(s)://host:port of the coordinator.")
    trino_catalog: str | None = Field(default=None, description="Trino's name of the raw catalog.")
    trino_iceberg_catalog: str | None = Field(
        default=None, description="Trino's name of the catalog of rollups."
    )
    trino_typed_catalog: str | None = Field(
        default=None, description="Trino's name of the catalog of typed tables."
    )
    iceberg_catalog: str | None = Field(
        default=None,
        description="Catalog of typed tables: `hive`, https://… of a REST server, or postgresql://… of a database.",
    )
    warehouse: str | None = Field(default=None, description="Location of Iceberg tables.")
    store: str | None = Field(default=None, description="s3:// URL of the fragment store.")
    store_roots: dict[str, str] = Field(
        default_factory=dict, description="Location of tables by URL of the fragment store."
    )
    iceberg_jar: str | None = Field(
        default=None, description="Iceberg's runtime for Spark, or `provided`; without, no Spark."
    )
    jdbc_jar: str | None = Field(
        default=None, description="Spark's driver for a catalog in a database."
    )
    s3_jars: str | None = Field(default=None, description="Folder of Hadoop's jars for S3.")
    spark_master: str | None = Field(default=None, description="Spark's master URL.")
    spark_properties: str | None = Field(default=None, description="File of properties of Spark.")
    dagster: str | None = Field(
        default=None,
        description="http://host:port of Dagster's web server, to have specs reloaded.",
    )
    table_url: str | None = Field(
        default=None, description="Page of a table, with {catalog}, {schema} and {table} in it."
    )
    fragment_sensors: int | None = Field(
        default=None, description="Sensors that share out the raw tables, 1 to 32."
    )
    resources: dict[str, str] = Field(
        default_factory=dict,
        description="By `trino` and `spark`: key of a resource of the project that is used instead.",
    )

    @classmethod
    @override
    def get_spec(cls) -> ComponentTypeSpec:
        """What tools show of the component."""
        return ComponentTypeSpec(description=cls.__doc__, tags=["gazette", "hive", "iceberg"])

    @override
    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """The definitions of the lake.

        Raises: ValidationError: an attribute is malformed.
        """
        return lake_definitions(
            self.settings(context.path),
            functions=[_function(path) for path in self.functions],
            engines=self.resources,
        )

    def settings(self, folder: Path) -> LakeSettings:
        """Where all is: as the attributes say, and the environment where they say nothing.

        Args:
            folder: of the defs.yaml, in which relative paths are.

        Raises: ValidationError: an attribute is malformed.
        """
        environment = dict(os.environ)
        for name, variable in (_PATHS | _TEXTS).items():
            value = getattr(self, name)
            if value:
                environment[variable] = str(folder / value) if name in _PATHS else value
        if self.store_roots:
            environment["GAZETTE_LAKE_STORE_ROOTS"] = json.dumps(self.store_roots)
        if self.fragment_sensors is not None:
            environment["GAZETTE_FRAGMENT_SENSORS"] = str(self.fragment_sensors)
        return LakeSettings.from_environment(environment)


def _function(path: str) -> PythonRollup:
    """What ``module.name`` names."""
    module, _, name = path.rpartition(".")
    where = f"functions.{path}"
    if not module:
        raise ValidationError(
            "is not a module.name, such as my_project.rollups.carriers", path=where
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as err:
        raise ValidationError(f"{err}; is it of the project?", path=where) from err
    if not isinstance(found, PythonRollup):
        raise ValidationError(
            f"{module} has no rollup {name}: decorate a function with gazette_platform.lake.rollups.rollup",
            path=where,
        )
    return found
