package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var franzChecks = []check{
	{"create_topic", franzCreateTopic},
	{"produce", func() error { return franzProduce(topic, kgo.DisableIdempotentWrite()) }},
	{"consume", franzConsume},
	{"go_on", franzGoOn},
	{"seek", franzSeek},
	{"list_offsets", franzListOffsets},
	{"idempotent", franzIdempotent},
	{"transactions", franzTransactions},
	{"offsets_in_transaction", franzOffsetsInTransaction},
	{"describe_group", franzDescribeGroup},
	{"create_partitions", franzCreatePartitions},
	{"delete_topic", franzDeleteTopic},
}

func franz(options ...kgo.Opt) (*kgo.Client, context.Context, func()) {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(server))...)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	return client, ctx, func() { cancel(); client.Close() }
}

func franzGroup(group, name string, options ...kgo.Opt) (*kgo.Client, context.Context, func()) {
	return franz(append(options, kgo.ConsumerGroup(topic+"-"+group), kgo.ConsumeTopics(name),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
}

func franzRecord(name string, number int) *kgo.Record {
	return &kgo.Record{
		Topic: name, Key: fmt.Appendf(nil, "key-%d", number), Value: []byte(valueOf(number)),
		Headers: []kgo.RecordHeader{{Key: "h", Value: fmt.Append(nil, number)}, {Key: "empty", Value: []byte{}}},
	}
}

func franzNumber(record *kgo.Record) (int, error) {
	if len(record.Headers) == 0 {
		return 0, expect("headers", false, record)
	}
	return numberOf(record.Key, record.Value, record.Headers[0].Value, len(record.Headers))
}

// franzRead returns count records, or fewer if no more come.
func franzRead(ctx context.Context, client *kgo.Client, count int) (found []*kgo.Record, err error) {
	for len(found) < count {
		fetches := client.PollRecords(ctx, count-len(found))
		if err := fetches.Err(); err != nil {
			return found, fmt.Errorf("after %d of %d records: %w", len(found), count, err)
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}

func franzNumbers(records []*kgo.Record) (numbers []int, err error) {
	for _, record := range records {
		number, err := franzNumber(record)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

func franzExpect(records []*kgo.Record, count int) error {
	numbers, err := franzNumbers(records)
	if err != nil {
		return err
	}
	return expectNumbers(numbers, count)
}

func franzCreate(name string, partitions int32) error {
	client, ctx, end := franz()
	defer end()
	_, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, name)
	return err
}

func franzCreateTopic() error {
	if err := franzCreate(topic, 2); err != nil {
		return err
	}
	client, ctx, end := franz()
	defer end()
	admin := kadm.NewClient(client)
	found, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	if err := expect("partitions", len(found[topic].Partitions) == 2, found[topic]); err != nil {
		return err
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	_, err = configs.On(topic, nil)
	return err
}

func franzProduce(name string, options ...kgo.Opt) error {
	client, ctx, end := franz(options...)
	defer end()
	records := make([]*kgo.Record, recordCount)
	for number := range records {
		records[number] = franzRecord(name, number)
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func franzConsume() error {
	client, ctx, end := franzGroup("all", topic)
	defer end()
	found, err := franzRead(ctx, client, recordCount)
	if err != nil {
		return err
	}
	return franzExpect(found, recordCount)
}

func franzGoOn() error {
	first, ctx, end := franzGroup("go-on", topic)
	defer end()
	found, err := franzRead(ctx, first, 300)
	if err == nil {
		err = first.CommitRecords(ctx, found...)
	}
	first.Close()
	if err != nil {
		return err
	}
	second, ctx, end := franzGroup("go-on", topic)
	defer end()
	rest, err := franzRead(ctx, second, recordCount-len(found))
	if err != nil {
		return err
	}
	return franzExpect(append(found, rest...), recordCount)
}

func franzFrom(offset kgo.Offset) (*kgo.Client, context.Context, func()) {
	return franz(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: offset}}))
}

func franzSeek() error {
	client, ctx, end := franzFrom(kgo.NewOffset().AtStart())
	defer end()
	found, err := franzRead(ctx, client, 100)
	if err != nil {
		return err
	}
	for _, at := range []int{0, 57, 99} {
		client.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: found[at].Offset}}})
		again, err := franzRead(ctx, client, 1)
		if err != nil {
			return err
		}
		same := again[0].Offset == found[at].Offset && string(again[0].Key) == string(found[at].Key)
		if err := expect("the same record", same, again[0]); err != nil {
			return err
		}
	}
	return nil
}

func franzListOffsets() error {
	client, ctx, end := franzFrom(kgo.NewOffset().AtStart())
	defer end()
	found, err := franzRead(ctx, client, 50)
	if err != nil {
		return err
	}
	admin := kadm.NewClient(client)
	first, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	last, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	byTime, err := admin.ListOffsetsAfterMilli(ctx, found[49].Timestamp.UnixMilli(), topic)
	if err != nil {
		return err
	}
	at := byTime[topic][0]
	return expect("offsets", first[topic][0].Offset == 0 && last[topic][0].Offset > found[49].Offset &&
		at.Offset <= found[49].Offset && at.Timestamp == found[49].Timestamp.UnixMilli(), first, last, byTime)
}

func franzIdempotent() error {
	name := topic + "-idempotent"
	if err := franzCreate(name, 1); err != nil {
		return err
	}
	if err := franzProduce(name, kgo.ProducerBatchMaxBytes(2000)); err != nil {
		return err
	}
	client, ctx, end := franzGroup("idempotent", name)
	defer end()
	found, err := franzRead(ctx, client, recordCount)
	if err != nil {
		return err
	}
	numbers, err := franzNumbers(found)
	for at, number := range numbers {
		if err := expect("the order", at == number, at, number); err != nil {
			return err
		}
	}
	return err
}

func franzTransactions() error {
	name := topic + "-transactions"
	if err := franzCreate(name, 2); err != nil {
		return err
	}
	client, ctx, end := franz(kgo.TransactionalID(name))
	defer end()
	for round := range 4 {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		var records []*kgo.Record
		for at := range 100 {
			records = append(records, franzRecord(name, round/2*100+at))
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(round%2 == 0)); err != nil {
			return err
		}
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, franzRecord(name, 999)).FirstErr(); err != nil {
		return err
	}
	committed, ctx, endRead := franzGroup("committed", name, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer endRead()
	found, err := franzRead(ctx, committed, 200)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found = append(found, committed.PollFetches(short).Records()...)
	if err := franzExpect(found, 200); err != nil {
		return err
	}
	if err := client.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return err
	}
	all, ctx, endAll := franzGroup("uncommitted", name)
	defer endAll()
	found, err = franzRead(ctx, all, 401)
	return err
}

func franzOffsetsInTransaction() error {
	name := topic + "-copies"
	if err := franzCreate(name, 1); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(server), kgo.TransactionalID(name),
		kgo.ConsumerGroup(topic+"-copies"), kgo.ConsumeTopics(topic), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for copied, round := 0, 0; copied < recordCount; round++ {
		fetches := session.PollRecords(ctx, 200)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var records []*kgo.Record
		for _, each := range fetches.Records() {
			records = append(records, &kgo.Record{Topic: name, Key: each.Key, Value: each.Value, Headers: each.Headers})
		}
		if err := session.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		done, err := session.End(ctx, kgo.TransactionEndTry(round%2 == 1))
		if err != nil {
			return err
		}
		if done {
			copied += len(records)
		}
	}
	client, ctx, end := franzGroup("copied", name, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer end()
	found, err := franzRead(ctx, client, recordCount)
	if err != nil {
		return err
	}
	return franzExpect(found, recordCount)
}

func franzDescribeGroup() error {
	client, ctx, end := franz()
	defer end()
	group, admin := topic+"-go-on", kadm.NewClient(client)
	listed, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	found, err := admin.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	lag, err := admin.Lag(ctx, group)
	if err != nil {
		return err
	}
	offsets, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	_, isListed := listed[group]
	described := isListed && found[group].Err == nil && len(found[group].Members) == 0 &&
		len(offsets[topic]) > 0 && lag[group].Lag.Total() > 0
	if err := expect("a group", described, listed, found, offsets, lag); err != nil {
		return err
	}
	_, err = admin.DeleteGroup(ctx, group)
	return err
}

func franzCreatePartitions() error {
	client, ctx, end := franz()
	defer end()
	admin := kadm.NewClient(client)
	made, err := admin.UpdatePartitions(ctx, 4, topic)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		return err
	}
	found, err := admin.ListTopics(ctx, topic)
	return firstOf(err, expect("partitions", len(found[topic].Partitions) == 4, found))
}

func franzDeleteTopic() error {
	client, ctx, end := franz()
	defer end()
	admin := kadm.NewClient(client)
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	found, err := admin.ListTopics(ctx)
	return firstOf(err, expect("no topic", !found.Has(topic), found))
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
