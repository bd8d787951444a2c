// Checks of a Kafka server by the Java client. Arguments: the server and a topic, which must not exist.
// Writes a line of JSON for each check. `tests/benches/kafka_programs.py` says what the checks are.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class KafkaChecks {
  private static final int RECORDS = 1000;
  private static final long WAIT_MS = 60_000;
  private static String server;
  private static String topic;

  private interface Check {
    void run() throws Exception;
  }

  public static void main(String[] arguments) {
    server = arguments[0];
    topic = arguments[1];
    run("create_topic", KafkaChecks::createTopic);
    run("produce", () -> produce(topic, Map.of("enable.idempotence", "false", "acks", "all")));
    run("consume", KafkaChecks::consume);
    run("go_on", KafkaChecks::goOn);
    run("seek", KafkaChecks::seek);
    run("list_offsets", KafkaChecks::listOffsets);
    run("idempotent", KafkaChecks::idempotent);
    run("transactions", KafkaChecks::transactions);
    run("offsets_in_transaction", KafkaChecks::offsetsInTransaction);
    run("describe_group", KafkaChecks::describeGroup);
    run("create_partitions", KafkaChecks::createPartitions);
    run("delete_topic", KafkaChecks::deleteTopic);
    System.exit(0);
  }

  private static void run(String name, Check check) {
    String error = "";
    long began = System.currentTimeMillis();
    try {
      check.run();
    } catch (Throwable failure) {
      failure.printStackTrace();
      error = failure.toString().replaceAll("[\\\\\"\\p{Cntrl}]", " ");
    }
    System.err.println(name + " took " + (System.currentTimeMillis() - began) + " ms");
    System.out.println("{\"check\":\"" + name + "\",\"error\":\"" + error + "\"}");
  }

  private static void expect(Object expected, Object found) {
    if (!expected.equals(found)) {
      throw new AssertionError("expected " + expected + ", found " + found);
    }
  }

  private static Admin admin() {
    return Admin.create(Map.of("bootstrap.servers", server));
  }

  private static KafkaProducer<String, String> producer(Map<String, Object> options) {
    Map<String, Object> all = new HashMap<>(options);
    all.put("bootstrap.servers", server);
    return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
  }

  private static KafkaConsumer<String, String> consumer(String group, String... options) {
    Map<String, Object> all = new HashMap<>();
    all.put("bootstrap.servers", server);
    all.put("group.id", topic + "-" + group);
    all.put("auto.offset.reset", "earliest");
    all.put("enable.auto.commit", "false");
    for (int at = 0; at < options.length; at += 2) {
      all.put(options[at], options[at + 1]);
    }
    return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
  }

  private static ProducerRecord<String, String> record(String name, int number) {
    String value = "{\"n\":" + number + ",\"text\":\"gr\u00fcn\"}";
    var made = new ProducerRecord<>(name, "key-" + number, value);
    made.headers().add("h", Integer.toString(number).getBytes(UTF_8)).add("empty", new byte[0]);
    return made;
  }

  private static int numberOf(ConsumerRecord<String, String> found) {
    int number = Integer.parseInt(found.key().substring(4));
    var made = record(found.topic(), number);
    expect(made.value(), found.value());
    expect(Integer.toString(number), new String(found.headers().lastHeader("h").value(), UTF_8));
    expect(0, found.headers().lastHeader("empty").value().length);
    return number;
  }

  private static List<RecordMetadata> produce(String name, Map<String, Object> options)
      throws Exception {
    List<RecordMetadata> answers = new ArrayList<>();
    try (var producer = producer(options)) {
      List<Future<RecordMetadata>> sent = new ArrayList<>();
      for (int number = 0; number < RECORDS; number++) {
        sent.add(producer.send(record(name, number)));
      }
      for (var each : sent) {
        answers.add(each.get());
      }
    }
    return answers;
  }

  private static List<ConsumerRecord<String, String>> read(
      KafkaConsumer<String, String> consumer, int count) {
    List<ConsumerRecord<String, String>> found = new ArrayList<>();
    long until = System.currentTimeMillis() + WAIT_MS;
    while (found.size() < count && System.currentTimeMillis() < until) {
      consumer.poll(Duration.ofMillis(500)).forEach(found::add);
    }
    return found;
  }

  private static void expectAll(List<ConsumerRecord<String, String>> found) {
    expect(RECORDS, found.size());
    expect((long) RECORDS, found.stream().map(KafkaChecks::numberOf).distinct().count());
  }

  private static void createTopic() throws Exception {
    try (var admin = admin()) {
      var made = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
      admin.createTopics(List.of(made)).all().get();
      var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
      expect(2, found.partitions().size());
      expect(found, admin.describeTopics(
          org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(found.topicId())))
          .allTopicIds().get().get(found.topicId()));
      var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
      var configs = admin.describeConfigs(List.of(resource)).all().get().get(resource);
      expect("3600000", configs.get("retention.ms").value());
      expect(true, admin.listTopics().names().get().contains(topic));
      expect(1, admin.describeCluster().nodes().get().size());
    }
  }

  private static void consume() {
    try (var consumer = consumer("all")) {
      consumer.subscribe(List.of(topic));
      expectAll(read(consumer, RECORDS));
    }
  }

  private static void goOn() {
    List<ConsumerRecord<String, String>> found = new ArrayList<>();
    try (var consumer = consumer("go-on", "max.poll.records", "100")) {
      consumer.subscribe(List.of(topic));
      found.addAll(read(consumer, 300));
      consumer.commitSync();
    }
    try (var consumer = consumer("go-on")) {
      consumer.subscribe(List.of(topic));
      found.addAll(read(consumer, RECORDS - found.size()));
    }
    expectAll(found);
  }

  private static void seek() {
    try (var consumer = consumer("seek")) {
      var partition = new TopicPartition(topic, 0);
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      var found = read(consumer, 100);
      for (int at : new int[] {0, 57, 99}) {
        consumer.seek(partition, found.get(at).offset());
        var again = read(consumer, 1).get(0);
        expect(found.get(at).offset(), again.offset());
        expect(found.get(at).key(), again.key());
      }
    }
  }

  private static void listOffsets() throws Exception {
    var partition = new TopicPartition(topic, 0);
    try (var admin = admin(); var consumer = consumer("list")) {
      var first = admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get();
      var last = admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get();
      var newest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all().get();
      expect(0L, first.get(partition).offset());
      expect(consumer.endOffsets(List.of(partition)), Map.of(partition, last.get(partition).offset()));
      expect(true, newest.get(partition).offset() < last.get(partition).offset());
      consumer.assign(List.of(partition));
      var found = read(consumer, 50).get(49);
      var byTime = consumer.offsetsForTimes(Map.of(partition, found.timestamp())).get(partition);
      expect(true, byTime.offset() <= found.offset());
      expect(found.timestamp(), byTime.timestamp());
    }
  }

  private static String another(String kind, int partitions) throws Exception {
    String name = topic + "-" + kind;
    try (var admin = admin()) {
      admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
    }
    return name;
  }

  private static void idempotent() throws Exception {
    String name = another("idempotent", 1);
    var answers = produce(name, Map.of("enable.idempotence", "true", "batch.size", "2000"));
    for (int at = 1; at < RECORDS; at++) {
      expect(true, answers.get(at).offset() > answers.get(at - 1).offset());
    }
    try (var consumer = consumer("idempotent")) {
      consumer.subscribe(List.of(name));
      var found = read(consumer, RECORDS);
      expectAll(found);
      for (int at = 0; at < RECORDS; at++) {
        expect(at, numberOf(found.get(at)));
      }
    }
  }

  private static void transactions() throws Exception {
    String name = another("transactions", 2);
    try (var producer = producer(Map.of("transactional.id", name))) {
      producer.initTransactions();
      for (int round = 0; round < 4; round++) {
        producer.beginTransaction();
        for (int at = 0; at < 100; at++) {
          producer.send(record(name, round * 100 + at));
        }
        producer.flush();
        if (round % 2 == 0) {
          producer.commitTransaction();
        } else {
          producer.abortTransaction();
        }
      }
      producer.beginTransaction();
      producer.send(record(name, 999)).get();
      expectCommitted(name);
      producer.abortTransaction();
    }
    try (var consumer = consumer("uncommitted")) {
      consumer.subscribe(List.of(name));
      expect(401, read(consumer, 401).size());
    }
  }

  private static void expectCommitted(String name) {
    try (var consumer = consumer("committed-" + name, "isolation.level", "read_committed")) {
      consumer.subscribe(List.of(name));
      var found = read(consumer, 200);
      consumer.poll(Duration.ofMillis(1000)).forEach(found::add);
      var numbers = found.stream().map(KafkaChecks::numberOf).sorted().toList();
      expect(200, numbers.size());
      for (int at = 0; at < 200; at++) {
        expect(at < 100 ? at : at + 100, numbers.get(at));
      }
    }
  }

  private static void offsetsInTransaction() throws Exception {
    String name = another("copies", 1);
    try (var producer = producer(Map.of("transactional.id", name));
        var consumer = consumer("copies")) {
      consumer.subscribe(List.of(topic));
      producer.initTransactions();
      int copied = 0;
      for (int round = 0; copied < RECORDS && round < 1000; round++) {
        var some = consumer.poll(Duration.ofMillis(500));
        if (some.isEmpty()) {
          continue;
        }
        producer.beginTransaction();
        for (var each : some) {
          producer.send(new ProducerRecord<>(name, null, each.key(), each.value(), each.headers()));
        }
        producer.sendOffsetsToTransaction(some.nextOffsets(), consumer.groupMetadata());
        if (round % 2 == 0) {
          producer.abortTransaction();
          var committed = consumer.committed(consumer.assignment());
          for (var partition : consumer.assignment()) {
            var kept = committed.get(partition);
            if (kept == null) {
              consumer.seekToBeginning(List.of(partition));
            } else {
              consumer.seek(partition, kept);
            }
          }
          continue;
        }
        producer.commitTransaction();
        copied += some.count();
      }
    }
    try (var consumer = consumer("copied", "isolation.level", "read_committed")) {
      consumer.subscribe(List.of(name));
      expectAll(read(consumer, RECORDS));
    }
  }

  private static void describeGroup() throws Exception {
    String group = topic + "-go-on";
    try (var admin = admin()) {
      var listed = admin.listGroups().all().get();
      expect(true, listed.stream().anyMatch(each -> each.groupId().equals(group)));
      var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
      expect(0, found.members().size());
      var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
      expect(2, offsets.size());
      admin.deleteConsumerGroups(List.of(group)).all().get();
      listed = admin.listGroups().all().get();
      expect(false, listed.stream().anyMatch(each -> each.groupId().equals(group)));
    }
  }

  private static void createPartitions() throws Exception {
    try (var admin = admin()) {
      admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
      var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
      expect(4, found.partitions().size());
    }
  }

  private static void deleteTopic() throws Exception {
    try (var admin = admin()) {
      admin.deleteTopics(List.of(topic)).all().get();
      expect(false, admin.listTopics().names().get().contains(topic));
    }
  }
}
