"""A Spark driver that is made to be killed: totals of committed messages in an Iceberg table, and a copy of each in journals.

Run as a program, with its settings as JSON. With `last` it ends when it has read all there is, and prints the totals.
"""

from __future__ import annotations

import json
import sys

from lake_servers import plain_spark_session

from gazette_platform.platform import tools
from gazette_platform.spark import register

__all__: list[str] = []

_TABLE = "ice.db.totals"


def main() -> None:
    settings = json.loads(sys.argv[1])
    catalog = "spark.sql.catalog.ice"
    properties = {
        "spark.driver.extraClassPath": str(tools.iceberg_spark_runtime()),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": f"{settings['folder']}/warehouse",
        # Else the table is read for half a minute as it was when the session began.
        f"{catalog}.cache-enabled": "false",
    }
    with plain_spark_session(**properties) as spark:
        register(spark)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {_TABLE} (key bigint, messages bigint, total bigint) "
            "USING iceberg"
        )
        # A run with `availableNow` is one batch: the one that was planned when the driver was killed, and then the rest.
        for _ in range(2 if settings["last"] else 1):
            queries = [
                _totals(_numbers(spark, settings), settings),
                _copies(_numbers(spark, settings), settings),
            ]
            if not settings["last"]:
                spark.streams.awaitAnyTermination()
            for query in queries:
                query.awaitTermination()
        rows = spark.table(_TABLE).orderBy("key").collect()
        print(json.dumps([list(row) for row in rows]))


def _numbers(spark, settings):
    reader = spark.readStream.format("gazette").option("broker", settings["broker"])
    if not settings["last"]:
        reader = reader.option("maxBytesPerTrigger", "256k")
    return (
        reader.option("committed", "true")
        .schema("n bigint, key bigint")
        .load(f"name:prefix={settings['source']}")
    )


def _totals(rows, settings):
    grouped = rows.groupBy("key").agg({"*": "count", "n": "sum"})
    totals = grouped.toDF("key", "messages", "total")
    writer = totals.writeStream.format("iceberg").outputMode("complete")
    return _started(writer, "totals", settings).toTable(_TABLE)


def _copies(rows, settings):
    writer = rows.writeStream.format("gazette").options(
        broker=settings["broker"],
        selector=f"name:prefix={settings['copies']}",
        mapping="random",
        stagingJournal=settings["staging"],
        uuid="_meta.uuid",
    )
    return _started(writer, "copies", settings).start()


def _started(writer, name, settings):
    trigger = {"availableNow": True} if settings["last"] else {"processingTime": "0 seconds"}
    checkpoint = f"{settings['folder']}/checkpoints/{name}"
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger)


if __name__ == "__main__":
    main()
