// Counts words by Kafka Streams, exactly once: from the topic `in` to the topic `out`.
// Arguments: the server and a folder for its state.

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

public final class WordCount {
  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.put("application.id", "words");
    settings.put("bootstrap.servers", arguments[0]);
    settings.put("state.dir", arguments[1]);
    settings.put("processing.guarantee", "exactly_once_v2");
    settings.put("commit.interval.ms", "500");
    settings.put("auto.offset.reset", "earliest");
    settings.put("replication.factor", "1");
    settings.put("topic.kafka.form", "envelope"); // its counts are numbers of eight bytes
    settings.put("default.key.serde", Serdes.StringSerde.class.getName());
    settings.put("default.value.serde", Serdes.StringSerde.class.getName());
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream("in")
        .flatMapValues(value -> Arrays.asList(value.replaceAll("[^a-z]+", " ").trim().split(" ")))
        .groupBy((key, word) -> word)
        .count()
        .toStream()
        .mapValues(count -> "{\"n\":" + count + "}")
        .to("out");
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime()
        .addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
  }
}
