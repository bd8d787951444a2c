"""Dagster resources of the platform: brokers, metastore, Trino, and where table specs lie.

Spark comes as ``dagster_pyspark.LazyPySparkResource``, so that a run that needs none starts no JVM.
"""

from gazette_platform.resources.lake import LakeResource, MetastoreResource
from gazette_platform.resources.services import BrokerResource, TrinoResource

__all__ = ["BrokerResource", "LakeResource", "MetastoreResource", "TrinoResource"]
