"""Dagster resources of the platform: brokers, metastore, Trino, and where table specs lie.

Spark comes as a ``dagster_pyspark.LazyPySparkResource``, so that a run that needs none starts no JVM.
`platform_resources` gives all of them, also to definitions of users.
"""

from gazette_platform.resources.lake import LakeResource, MetastoreResource
from gazette_platform.resources.platform import platform_resources
from gazette_platform.resources.services import BrokerResource, TrinoResource
from gazette_platform.resources.spark import SparkResource

__all__ = [
    "BrokerResource",
    "LakeResource",
    "MetastoreResource",
    "SparkResource",
    "TrinoResource",
    "platform_resources",
]
