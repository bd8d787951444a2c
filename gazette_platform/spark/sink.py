"""Writes of Spark to journals: what tasks do, and what the driver does when they are done."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext
from typing_extensions import override

from gazette_platform.client import Client
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.spark.delivery import Delivery, check_targets
from gazette_platform.spark.frames import encoder, layout_of
from gazette_platform.spark.marks import Writer
from gazette_platform.spark.staging import Block, Blocks
from gazette_platform.spark.targets import Router, Targets, find_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    from gazette_platform.spark.sink_options import SinkOptions

__all__ = ["BatchWriter", "StreamWriter"]

# Spark sets it while a query's batch runs; no other call names the query.
_QUERY_ID: Final = "sql.streaming.queryId"


@final
@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task made."""

    blocks: tuple[Block, ...]
    query: str = ""
    """Id of the streaming query; empty: it is none."""


@final
class _Sink:
    """What batches and streams have in common. Can be pickled: tasks get it, too."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ValidationError(
                'journals are appended to only: mode("append"), outputMode("append") or outputMode("update")'
            )
        self.options = options
        self._layout = layout_of(schema, key=options.key, uuid=options.uuid)
        with Client(options.config) as client:
            self.targets: Targets = client.run(find_targets(client.asynchronous, options))
        # What cannot be written is reported before tasks begin.
        self._router()
        self._encoders()

    def _router(self) -> Router:
        return Router(self.targets, self._layout, self.options.mapping)

    def _encoders(self) -> list[Any]:
        made = {
            kind: encoder(kind, self._layout, self.options.uuid)
            for kind in sorted(set(self.targets.content_types))
        }
        return [made[kind] for kind in self.targets.content_types]

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[Block, ...]:
        """What a task does."""
        router, encoders = self._router(), self._encoders()
        with Client(self.options.config) as client:
            blocks = Blocks(client.asynchronous, self.options.staging)
            for rows in batches:
                for place, part in router.share_out(rows):
                    made = encoders[place]
                    adding = blocks.add(
                        self.targets.names[place], made.encode(part), uuid_at=made.uuid_at
                    )
                    client.run(adding)
            return client.run(blocks.finish())

    def deliver(
        self, writer: Writer, epoch: int, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        """What the driver does."""
        blocks = [block for one in messages if isinstance(one, Written) for block in one.blocks]
        with Client(self.options.config) as client:
            delivery = Delivery(
                client.asynchronous, writer, SystemClock(), staging=self.options.staging
            )
            client.run(delivery.deliver(epoch, blocks))


@final
class BatchWriter(DataSourceArrowWriter):
    """A batch: what tasks made is appended when all of them are done, or nothing is.

    Raises: ValidationError: options, columns and journals do not go together.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._sink = _Sink(options, schema, overwrite=overwrite)
        self._writer = Writer(options.writer or secrets.token_hex(16), bool(options.writer))
        check_targets(
            self._sink.targets, staging=options.staging, is_lasting=self._writer.is_lasting
        )

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(self._sink.write(iterator))

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.deliver(self._writer, max(0, self._sink.options.epoch), messages)


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """A stream: each of its batches is appended once, whatever was killed and repeated.

    Raises: ValidationError: as `BatchWriter`, and options that only batches have.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.writer:
            raise ValidationError(
                "is of batches only: a stream writes in the name of its query", path="writer"
            )
        self._sink = _Sink(options, schema, overwrite=overwrite)
        check_targets(self._sink.targets, staging=options.staging, is_lasting=True)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query:
            raise SetupError(
                f"Spark does not pass the query to tasks ({_QUERY_ID}): without that an epoch that is done "
                "again would be duplicated"
            )
        return Written(self._sink.write(iterator), query)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {one.query for one in messages if isinstance(one, Written)}
        if queries:
            [query] = queries
            self._sink.deliver(Writer(query), batchId, messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass  # nothing is in the journals yet
