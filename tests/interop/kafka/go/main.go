// Checks of a Kafka server by franz-go or sarama, as KAFKA_CLIENT says. Arguments: the server, and a topic, which must not exist. Writes a line of JSON for each check; `tests/benches/kafka_programs.py` says what they are.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const (
	recordCount = 1000
	wait        = 60 * time.Second
)

var server, topic string

type check struct {
	name string
	run  func() error
}

func main() {
	server, topic = os.Args[1], os.Args[2]
	checks := map[string][]check{"franz-go": franzChecks, "sarama": saramaChecks}[os.Getenv("KAFKA_CLIENT")]
	out := json.NewEncoder(os.Stdout)
	for _, each := range checks {
		answer := map[string]string{"check": each.name, "error": ""}
		began := time.Now()
		if err := each.run(); err != nil {
			answer["error"] = err.Error()
		}
		fmt.Fprintln(os.Stderr, each.name, "took", time.Since(began))
		if err := out.Encode(answer); err != nil {
			panic(err)
		}
	}
}

func expect(what string, ok bool, found ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s: found %v", what, found)
}

func valueOf(number int) string {
	return fmt.Sprintf(`{"n":%d,"text":"grün"}`, number)
}

// numberOf is the number of a record, whose other parts have to be those that were produced.
func numberOf(key, value, header []byte, headers int) (int, error) {
	var number int
	if _, err := fmt.Sscanf(string(key), "key-%d", &number); err != nil {
		return 0, err
	}
	return number, expect("a record",
		string(value) == valueOf(number) && string(header) == fmt.Sprint(number) && headers == 2,
		string(key), string(value), string(header))
}

// expectNumbers fails unless there are those from 0 to count, each once.
func expectNumbers(numbers []int, count int) error {
	seen := map[int]bool{}
	for _, number := range numbers {
		seen[number] = number < count
	}
	return expect("records", len(numbers) == count && len(seen) == count, len(numbers), len(seen))
}
