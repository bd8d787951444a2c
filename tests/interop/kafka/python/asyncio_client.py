"""Checks by aiokafka."""

import contextlib

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from checks import RECORDS, WAIT_S, expect, expect_all, main, number_of, record

COMMITTED = {"isolation_level": "read_committed"}


@contextlib.asynccontextmanager
async def started(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close if isinstance(client, AIOKafkaAdminClient) else client.stop)()


def admin_of(server):
    return started(AIOKafkaAdminClient(bootstrap_servers=server))


def producer_of(server, **options):
    return started(AIOKafkaProducer(bootstrap_servers=server, acks="all", **options))


def consumer_of(server, group, *topics, **options):
    return started(
        AIOKafkaConsumer(
            *topics,
            bootstrap_servers=server,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **options,
        )
    )


async def create(server, name, partitions):
    async with admin_of(server) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1)])


async def partitions_of(admin, name):
    [found] = await admin.describe_topics([name])
    return len(found["partitions"])


async def send(producer, name, numbers):
    sent = []
    for number in numbers:
        key, value, headers = record(number)
        sent.append(await producer.send(name, value, key, headers=headers))
    for each in sent:
        await each


async def take(consumer, count, timeout_s=WAIT_S):
    found = []
    while len(found) < count:
        timeout_ms = round(timeout_s * 1000)
        some = await consumer.getmany(timeout_ms=timeout_ms, max_records=count - len(found))
        if not some:
            break
        found += [one for records in some.values() for one in records]
    return found


def numbers_of(records):
    return [number_of(one.key, one.value, one.headers) for one in records]


async def read(server, group, name, count, **options):
    async with consumer_of(server, group, name, **options) as consumer:
        return await take(consumer, count)


async def create_topic(server, topic):
    await create(server, topic, 2)
    async with admin_of(server) as admin:
        expect("partitions", await partitions_of(admin, topic), 2)
        expect("listed", topic in await admin.list_topics(), True)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        [answer] = await admin.describe_configs([resource])
        configs = {name: value for name, value, *_ in answer.resources[0][4]}
        expect("a policy", configs["cleanup.policy"], "delete")
        expect("nodes", len((await admin.describe_cluster())["brokers"]), 1)


async def produce(server, topic):
    async with producer_of(server) as producer:
        await send(producer, topic, range(RECORDS))


async def consume(server, topic):
    expect_all(numbers_of(await read(server, f"{topic}-all", topic, RECORDS)))


async def go_on(server, topic):
    group = f"{topic}-go-on"
    async with consumer_of(server, group, topic) as consumer:
        found = await take(consumer, 300)
        await consumer.commit()
    found += await read(server, group, topic, RECORDS - 300)
    expect_all(numbers_of(found))


async def seek(server, topic):
    async with consumer_of(server, None) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        found = await take(consumer, 100)
        for at in (0, 57, 99):
            consumer.seek(partition, found[at].offset)
            [again] = await take(consumer, 1)
            expect("the same", (again.offset, again.key), (found[at].offset, found[at].key))


async def list_offsets(server, topic):
    async with consumer_of(server, None) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        found = (await take(consumer, 50))[-1]
        first = (await consumer.beginning_offsets([partition]))[partition]
        last = (await consumer.end_offsets([partition]))[partition]
        by_time = (await consumer.offsets_for_times({partition: found.timestamp}))[partition]
        expect("the begin", first, 0)
        expect("the time", by_time.timestamp, found.timestamp)
        expect("the order", by_time.offset <= found.offset < last, True)


async def idempotent(server, topic):
    name = f"{topic}-idempotent"
    await create(server, name, 1)
    async with producer_of(server, enable_idempotence=True, max_batch_size=2000) as producer:
        await send(producer, name, range(RECORDS))
    found = numbers_of(await read(server, name, name, RECORDS))
    expect("the order", found, [*range(RECORDS)])


async def transactions(server, topic):
    name = f"{topic}-transactions"
    await create(server, name, 2)
    async with producer_of(server, transactional_id=name) as producer:
        for turn in range(4):
            await producer.begin_transaction()
            await send(producer, name, range(turn // 2 * 100, turn // 2 * 100 + 100))
            await (producer.abort_transaction if turn % 2 else producer.commit_transaction)()
        await producer.begin_transaction()
        await send(producer, name, [999])
        async with consumer_of(server, f"{name}-committed", name, **COMMITTED) as consumer:
            found = await take(consumer, 200) + await take(consumer, 1, 1.0)
        expect_all(numbers_of(found), 200)
        await producer.abort_transaction()
    expect("all", len(await read(server, f"{name}-all", name, 401)), 401)


async def offsets_in_transaction(server, topic):
    name = f"{topic}-copies"
    await create(server, name, 1)
    async with (
        producer_of(server, transactional_id=name) as producer,
        consumer_of(server, name, topic) as consumer,
    ):
        copied = turn = 0
        while copied < RECORDS:
            found = await take(consumer, min(200, RECORDS - copied))
            await producer.begin_transaction()
            await send(producer, name, numbers_of(found))
            places = {one: await consumer.position(one) for one in consumer.assignment()}
            await producer.send_offsets_to_transaction(places, name)
            if turn % 2:
                await producer.commit_transaction()
                copied += len(found)
            else:
                await producer.abort_transaction()
                for partition in places:
                    consumer.seek(partition, await consumer.committed(partition) or 0)
            turn += 1
    expect_all(numbers_of(await read(server, f"{name}-read", name, RECORDS, **COMMITTED)))


async def describe_group(server, topic):
    group = f"{topic}-go-on"
    async with admin_of(server) as admin:
        listed = {name for name, *_ in await admin.list_consumer_groups()}
        expect("listed", group in listed, True)
        [answer] = await admin.describe_consumer_groups([group])
        [(error, name, *_)] = answer.groups
        expect("described", (error, name), (0, group))
        expect("offsets", len(await admin.list_consumer_group_offsets(group)), 2)
    return "yes, except delete, which it cannot"


async def create_partitions(server, topic):
    async with admin_of(server) as admin:
        await admin.create_partitions({topic: NewPartitions(4)})
        expect("partitions", await partitions_of(admin, topic), 4)


async def delete_topic(server, topic):
    async with admin_of(server) as admin:
        await admin.delete_topics([topic])
        expect("there", topic in await admin.list_topics(), False)


main(
    {
        "create_topic": create_topic,
        "produce": produce,
        "consume": consume,
        "go_on": go_on,
        "seek": seek,
        "list_offsets": list_offsets,
        "idempotent": idempotent,
        "transactions": transactions,
        "offsets_in_transaction": offsets_in_transaction,
        "describe_group": describe_group,
        "create_partitions": create_partitions,
        "delete_topic": delete_topic,
    }
)
