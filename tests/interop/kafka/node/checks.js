// Checks of a Kafka server by kafkajs. Arguments: the server and a topic, which must not exist.
// Writes a line of JSON for each check; `tests/benches/kafka_programs.py` says what they are.

const assert = require("node:assert");
const { Kafka, logLevel } = require("kafkajs");

const [server, topic] = process.argv.slice(2);
const count = 1000;
const kafka = new Kafka({ brokers: [server], logLevel: logLevel.NOTHING });
const admin = kafka.admin();
const valueOf = (number) => `{"n":${number},"text":"grün"}`;
const messages = (from, to) =>
  Array.from({ length: to - from }, (_, at) => from + at).map((number) => ({
    key: `key-${number}`,
    value: valueOf(number),
    headers: { h: String(number), empty: "" },
  }));

function numberOf({ message }) {
  const number = Number(message.key.toString().slice(4));
  assert.equal(message.value.toString(), valueOf(number));
  assert.equal(message.headers.h.toString(), String(number));
  assert.equal(message.headers.empty.length, 0);
  return number;
}

function expectAll(found, wanted = count) {
  const numbers = found.map(numberOf).sort((a, b) => a - b);
  assert.deepEqual(numbers, Array.from({ length: wanted }, (_, at) => at));
}

async function producing(name, options, act) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...options });
  await producer.connect();
  try {
    return await act(producer);
  } finally {
    await producer.disconnect();
  }
}

// Reads in a group until there are enough records, and `after` is done with the consumer.
async function read(group, name, enough, { after = async () => {}, committed = true } = {}) {
  const consumer = kafka.consumer({ groupId: `${topic}-${group}`, readUncommitted: !committed });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [name], fromBeginning: true });
  try {
    await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${found.length} of ${enough} came`)), 60000);
      const eachMessage = async (record) => {
        if (found.length < enough) found.push(record);
        if (found.length === enough) {
          clearTimeout(late);
          resolve();
        }
      };
      consumer.run({ autoCommit: false, eachMessage }).catch(reject);
    });
    await after(consumer, found);
  } finally {
    await consumer.disconnect();
  }
  return found;
}

const create = (name, numPartitions) =>
  admin.createTopics({ topics: [{ topic: name, numPartitions }], waitForLeaders: true });
const partitions = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions;

const checks = {
  async create_topic() {
    await create(topic, 2);
    assert.equal((await partitions()).length, 2);
    assert((await admin.listTopics()).includes(topic));
    const described = await admin.describeConfigs({ resources: [{ type: 2, name: topic }] });
    assert(described.resources[0].configEntries.length > 0);
    assert.equal((await admin.describeCluster()).brokers.length, 1);
  },
  async produce() {
    await producing(topic, {}, (producer) => producer.send({ topic, messages: messages(0, count) }));
  },
  async consume() {
    expectAll(await read("all", topic, count));
  },
  async go_on() {
    const first = await read("go-on", topic, 300, {
      after: async (consumer, found) => {
        const last = {};
        for (const each of found) last[each.partition] = each;
        await consumer.commitOffsets(
          Object.values(last).map(({ partition, message }) => ({
            topic, partition, offset: String(BigInt(message.offset) + 1n),
          })),
        );
      },
    });
    expectAll([...first, ...(await read("go-on", topic, count - first.length))]);
  },
  async seek() {
    let at = null;
    const again = [];
    const seeking = kafka.consumer({ groupId: `${topic}-seek` });
    await seeking.connect();
    await seeking.subscribe({ topics: [topic], fromBeginning: true });
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error("the record did not come again")), 60000).unref();
      let seen = 0;
      const eachMessage = async ({ partition, message }) => {
        if (at === null && ++seen === 100) {
          at = { topic, partition, offset: message.offset };
          seeking.seek(at);
        } else if (at !== null && partition === at.partition && !again.length) {
          again.push(message);
          resolve();
        }
      };
      seeking.run({ autoCommit: false, eachMessage }).catch(reject);
    });
    await seeking.disconnect();
    assert.equal(again[0].offset, at.offset);
  },
  async list_offsets() {
    const offsets = await admin.fetchTopicOffsets(topic);
    for (const { low, high } of offsets) assert(low === "0" && Number(high) > 1000);
    const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() - 3600000);
    assert(Number(found.offset) < 1000);
  },
  async idempotent() {
    const name = `${topic}-idempotent`;
    await create(name, 1);
    await producing(name, { idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (let from = 0; from < count; from += 100) {
        await producer.send({ topic: name, messages: messages(from, from + 100) });
      }
    });
    const numbers = (await read("idempotent", name, count)).map(numberOf);
    assert.deepEqual(numbers, Array.from({ length: count }, (_, at) => at));
  },
  async transactions() {
    const name = `${topic}-transactions`;
    await create(name, 2);
    const options = { idempotent: true, maxInFlightRequests: 1, transactionalId: name };
    await producing(name, options, async (producer) => {
      for (let round = 0; round < 4; round++) {
        const transaction = await producer.transaction();
        const from = Math.floor(round / 2) * 100;
        await transaction.send({ topic: name, messages: messages(from, from + 100) });
        await (round % 2 ? transaction.commit() : transaction.abort());
      }
      const open = await producer.transaction();
      await open.send({ topic: name, messages: messages(999, 1000) });
      expectAll(await read("committed", name, 200), 200);
      await open.abort();
    });
    const all = await read("uncommitted", name, 401, { committed: false });
    assert.equal(all.length, 401);
  },
  async offsets_in_transaction() {
    const name = `${topic}-copies`;
    const options = { idempotent: true, maxInFlightRequests: 1, transactionalId: name };
    await producing(name, options, async (producer) => {
      for (const end of ["abort", "commit"]) {
        const transaction = await producer.transaction();
        await transaction.sendOffsets({
          consumerGroupId: `${topic}-copies`,
          topics: [{ topic, partitions: [{ partition: 0, offset: end === "abort" ? "7" : "9" }] }],
        });
        await transaction[end]();
        const found = await admin.fetchOffsets({ groupId: `${topic}-copies`, topics: [topic] });
        const { offset } = found[0].partitions.find((each) => each.partition === 0);
        assert.equal(offset, end === "abort" ? "-1" : "9");
      }
    });
  },
  async describe_group() {
    const group = `${topic}-go-on`;
    const listed = (await admin.listGroups()).groups.map((each) => each.groupId);
    assert(listed.includes(group));
    const [found] = (await admin.describeGroups([group])).groups;
    assert.equal(found.state, "Empty");
    await admin.deleteGroups([group]);
  },
  async create_partitions() {
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] });
    assert.equal((await partitions()).length, 4);
  },
  async delete_topic() {
    await admin.deleteTopics({ topics: [topic] });
    assert(!(await admin.listTopics()).includes(topic));
  },
};

async function main() {
  await admin.connect();
  for (const [check, run] of Object.entries(checks)) {
    let error = "";
    try {
      await run();
    } catch (failure) {
      console.error(check, failure);
      error = String(failure);
    }
    console.log(JSON.stringify({ check, error }));
  }
  await admin.disconnect();
  process.exit(0);
}

main();
