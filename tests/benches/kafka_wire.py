"""A client of Kafka's protocol that sends what a test wants, and a gateway beside a broker of the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import struct
from datetime import timedelta

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.serial import entity_reader, entity_writer

from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.server import BrokerWithKafka
from gazette_platform.kafka.wire import _module, message_class

ANSWER_S = 20.0


@contextlib.asynccontextmanager
async def gateway_of(broker, **settings):
    """A gateway in the process of a broker that serves."""
    defaults = {"port": 0, "store": "file:///kafka/"}
    both = BrokerWithKafka(broker, KafkaConfig(**(defaults | settings)))
    served = await both.start_kafka()
    try:
        yield served
    finally:
        await served.stop()


def batch_of(*values, producer_id=-1, epoch=-1, sequence=-1, codec=0, transactional=False):
    """A record batch as producers send it."""
    builder = DefaultRecordBatchBuilder(
        2, codec, int(transactional), producer_id, epoch, sequence, 1 << 30
    )
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000, None, value, [])
    return bytes(builder.build())


class WireClient:
    """One connection."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def entity(self, api, version, kind, /, **fields):
        """A part of a request."""
        made = getattr(_module(api, version, "request"), kind)
        known = {field.name for field in dataclasses.fields(made)}
        return made(**{key: value for key, value in fields.items() if key in known})

    async def send(self, api, version, request):
        """Send a request without waiting. Returns: its number."""
        self._number += 1
        header = request.__header_schema__
        buffer = io.BytesIO()
        fields = {
            "request_api_key": request.__api_key__,
            "request_api_version": version,
            "correlation_id": self._number,
            "client_id": "test",
        }
        entity_writer(header)(buffer, header(**fields))
        entity_writer(type(request))(buffer, request)
        self.send_frame(buffer.getvalue())
        await self._writer.drain()
        return self._number

    def send_frame(self, frame):
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data):
        self._writer.write(data)

    async def answer(self, api, version):
        """The next answer, and the number of its request."""
        async with asyncio.timeout(ANSWER_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
        kind = message_class(api, version, "response")
        header, at = entity_reader(kind.__header_schema__)(frame, 0)
        found, _ = entity_reader(kind)(frame, at)
        return header.correlation_id, found

    async def call(self, api, version, **fields):
        """Send a request, and wait for its answer."""
        number = await self.send(
            api,
            version,
            self.entity(api, version, message_class(api, version, "request").__name__, **fields),
        )
        answered, found = await self.answer(api, version)
        assert answered == number
        return found

    async def ended(self):
        """Wait until the server closes the connection."""
        async with asyncio.timeout(ANSWER_S):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass

    def produce_request(self, topic, *batches, acks=-1, version=9, transactional_id=None):
        parts = tuple(
            self.entity("produce", version, "PartitionProduceData", index=index, records=batch)
            for index, batch in batches
        )
        return self.entity(
            "produce",
            version,
            "ProduceRequest",
            transactional_id=transactional_id,
            acks=acks,
            timeout=timedelta(seconds=5),
            topic_data=(
                self.entity(
                    "produce", version, "TopicProduceData", name=topic, partition_data=parts
                ),
            ),
        )

    async def produce(self, topic, batch, *, index=0, version=9, **options):
        """Send a batch. Returns: the partition's part of the answer."""
        await self.send(
            "produce",
            version,
            self.produce_request(topic, (index, batch), version=version, **options),
        )
        return await self.produced(version=version)

    async def produced(self, *, version=9):
        _, found = await self.answer("produce", version)
        return found.responses[0].partition_responses[0]

    async def fetch(
        self, topic, offset, *, index=0, version=11, wait_s=1.0, isolation=0, size=1 << 20
    ):
        """Returns: the partition's part of the answer."""
        part = self.entity(
            "fetch",
            version,
            "FetchPartition",
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=size,
        )
        found = await self.call(
            "fetch",
            version,
            max_wait=timedelta(seconds=wait_s),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=(self.entity("fetch", version, "FetchTopic", topic=topic, partitions=(part,)),),
            forgotten_topics_data=(),
            replica_id=-1,
            rack_id="",
        )
        return found.responses[0].partitions[0]
