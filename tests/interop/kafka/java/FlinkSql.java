// Runs statements of Flink SQL, which come from stdin and end with a line of `;`, one after the other, each to its end.
// A query's rows are written to stdout, one a line.

import java.nio.charset.StandardCharsets;
import java.time.ZoneOffset;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public final class FlinkSql {
  public static void main(String[] arguments) throws Exception {
    var settings =
        Map.of(
            "execution.runtime-mode", "streaming",
            "execution.checkpointing.interval", "1 s",
            "restart-strategy.type", "none",
            "parallelism.default", "2");
    var environment =
        TableEnvironment.create(
            EnvironmentSettings.newInstance()
                .withConfiguration(Configuration.fromMap(settings))
                .build());
    environment.getConfig().setLocalTimeZone(ZoneOffset.UTC);
    String given = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
    for (String statement : given.split("\n;\n")) {
      var result = environment.executeSql(statement);
      if (result.getJobClient().isPresent() && statement.startsWith("INSERT")) {
        result.await();
      } else if (statement.startsWith("SELECT")) {
        try (var rows = result.collect()) {
          rows.forEachRemaining(System.out::println);
        }
      }
    }
    System.exit(0);
  }
}
