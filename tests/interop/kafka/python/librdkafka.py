"""Checks by confluent-kafka, which is librdkafka."""

from functools import cache

import confluent_kafka as ck
from checks import RECORDS, WAIT_S, expect, expect_all, main, number_of, record
from confluent_kafka import admin as ca


@cache
def admin_of(server):
    # One, and kept: what is under way fails if it is collected.
    return ca.AdminClient({"bootstrap.servers": server, "log_level": 0})


def results(futures):
    return {name: future.result(WAIT_S) for name, future in futures.items()}


def create(server, name, partitions):
    results(admin_of(server).create_topics([ca.NewTopic(name, partitions, 1)]))


def partitions_of(server, name):
    return len(admin_of(server).list_topics(name, timeout=WAIT_S).topics[name].partitions)


def send(producer, name, numbers):
    failed = []
    for number in numbers:
        key, value, headers = record(number)
        producer.produce(
            name,
            value,
            key,
            headers=headers,
            on_delivery=lambda err, _: failed.append(err) if err else None,
        )
    producer.flush(WAIT_S)
    expect("failures", failed, [])


def producer_of(server, **options):
    return ck.Producer({"bootstrap.servers": server, "log_level": 0, "acks": "all", **options})


def consumer_of(server, group, **options):
    defaults = {
        "bootstrap.servers": server,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_uncommitted",
        "log_level": 0,
    }
    return ck.Consumer(defaults | options)


def take(consumer, count, timeout_s=WAIT_S):
    found = []
    while len(found) < count:
        one = consumer.poll(timeout_s)
        if one is None:
            break
        if one.error():
            raise ck.KafkaException(one.error())
        found.append(one)
    return found


def numbers_of(records):
    return [number_of(one.key(), one.value(), one.headers()) for one in records]


def read(server, group, name, count, **options):
    consumer = consumer_of(server, group, **options)
    try:
        consumer.subscribe([name])
        return take(consumer, count)
    finally:
        consumer.close()


def create_topic(server, topic):
    create(server, topic, 2)
    expect("partitions", partitions_of(server, topic), 2)
    resource = ca.ConfigResource(ca.ConfigResource.Type.TOPIC, topic)
    [configs] = results(admin_of(server).describe_configs([resource])).values()
    expect("a policy", configs["cleanup.policy"].value, "delete")
    expect("nodes", len(admin_of(server).describe_cluster().result(WAIT_S).nodes), 1)


def produce(server, topic):
    send(producer_of(server), topic, range(RECORDS))


def consume(server, topic):
    expect_all(numbers_of(read(server, f"{topic}-all", topic, RECORDS)))


def go_on(server, topic):
    first = consumer_of(server, f"{topic}-go-on")
    first.subscribe([topic])
    found = take(first, 300)
    first.commit(asynchronous=False)
    first.close()
    found += read(server, f"{topic}-go-on", topic, RECORDS - 300)
    expect_all(numbers_of(found))


def seek(server, topic):
    consumer = consumer_of(server, f"{topic}-seek")
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    found = take(consumer, 100)
    for at in (0, 57, 99):
        consumer.seek(ck.TopicPartition(topic, 0, found[at].offset()))
        [again] = take(consumer, 1)
        expect("the same", (again.offset(), again.key()), (found[at].offset(), found[at].key()))
    consumer.close()


def list_offsets(server, topic):
    consumer = consumer_of(server, f"{topic}-list")
    partition = ck.TopicPartition(topic, 0)
    first, last = consumer.get_watermark_offsets(partition, WAIT_S)
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    found = take(consumer, 50)[-1]
    asked = ck.TopicPartition(topic, 0, found.timestamp()[1])
    [by_time] = consumer.offsets_for_times([asked], WAIT_S)
    consumer.close()
    asked = {partition: ca.OffsetSpec.latest()}
    [latest] = results(admin_of(server).list_offsets(asked)).values()
    expect("the begin", first, 0)
    expect("the end", latest.offset, last)
    expect("the order", 0 <= by_time.offset <= found.offset() < last, True)


def idempotent(server, topic):
    name = f"{topic}-idempotent"
    create(server, name, 1)
    producer = producer_of(server, **{"enable.idempotence": True, "batch.size": 2000})
    send(producer, name, range(RECORDS))
    found = numbers_of(read(server, name, name, RECORDS))
    expect("the order", found, [*range(RECORDS)])


def transactions(server, topic):
    name = f"{topic}-transactions"
    create(server, name, 2)
    producer = producer_of(server, **{"transactional.id": name})
    producer.init_transactions(WAIT_S)
    for turn in range(4):
        producer.begin_transaction()
        send(producer, name, range(turn // 2 * 100, turn // 2 * 100 + 100))
        end = producer.abort_transaction if turn % 2 else producer.commit_transaction
        end(WAIT_S)
    producer.begin_transaction()
    send(producer, name, [999])
    committed = consumer_of(server, f"{name}-committed", **{"isolation.level": "read_committed"})
    committed.subscribe([name])
    found = take(committed, 200) + take(committed, 1, 1.0)
    committed.close()
    expect_all(numbers_of(found), 200)
    producer.abort_transaction(WAIT_S)
    expect("all", len(read(server, f"{name}-all", name, 401)), 401)


def offsets_in_transaction(server, topic):
    name = f"{topic}-copies"
    create(server, name, 1)
    producer = producer_of(server, **{"transactional.id": name})
    producer.init_transactions(WAIT_S)
    consumer = consumer_of(server, name)
    consumer.subscribe([topic])
    copied = turn = 0
    while copied < RECORDS:
        found = take(consumer, min(200, RECORDS - copied))
        producer.begin_transaction()
        send(producer, name, numbers_of(found))
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WAIT_S)
        if turn % 2:
            producer.commit_transaction(WAIT_S)
            copied += len(found)
        else:
            producer.abort_transaction(WAIT_S)
            for place in consumer.committed(consumer.assignment(), WAIT_S):
                place.offset = max(place.offset, 0)
                consumer.seek(place)
        turn += 1
    consumer.close()
    options = {"isolation.level": "read_committed"}
    expect_all(numbers_of(read(server, f"{name}-read", name, RECORDS, **options)))


def describe_group(server, topic):
    group, admin = f"{topic}-go-on", admin_of(server)
    listed = {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}
    expect("listed", group in listed, True)
    [found] = results(admin.describe_consumer_groups([group])).values()
    expect("members", found.members, [])
    [offsets] = results(
        admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)])
    ).values()
    expect("offsets", {one.topic for one in offsets.topic_partitions}, {topic})
    results(admin.delete_consumer_groups([group]))
    listed = {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}
    expect("listed", group in listed, False)


def create_partitions(server, topic):
    results(admin_of(server).create_partitions([ca.NewPartitions(topic, 4)]))
    expect("partitions", partitions_of(server, topic), 4)


def delete_topic(server, topic):
    results(admin_of(server).delete_topics([topic]))
    expect("there", topic in admin_of(server).list_topics(timeout=WAIT_S).topics, False)


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
