package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var saramaChecks = []check{
	{"create_topic", saramaCreateTopic},
	{"produce", func() error { return saramaProduce(topic, saramaConfig()) }},
	{"consume", saramaConsume},
	{"go_on", saramaGoOn},
	{"seek", saramaSeek},
	{"list_offsets", saramaListOffsets},
	{"idempotent", saramaIdempotent},
	{"transactions", saramaTransactions},
	{"offsets_in_transaction", saramaOffsetsInTransaction},
	{"describe_group", saramaDescribeGroup},
	{"create_partitions", saramaCreatePartitions},
	{"delete_topic", saramaDeleteTopic},
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	return config
}

func saramaOnce() *sarama.Config {
	config := saramaConfig()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	return config
}

func saramaCommitted() *sarama.Config {
	config := saramaConfig()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config
}

func saramaTransactional(id string) *sarama.Config {
	config := saramaOnce()
	config.Producer.Transaction.ID = id
	return config
}

func saramaAdmin(act func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin([]string{server}, saramaConfig())
	if err != nil {
		return err
	}
	return firstOf(act(admin), admin.Close())
}

func saramaCreate(name string, partitions int32) error {
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
	})
}

func saramaCreateTopic() error {
	if err := saramaCreate(topic, 2); err != nil {
		return err
	}
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		topics, err := admin.ListTopics()
		if err != nil {
			return err
		}
		found, err := admin.DescribeTopics([]string{topic})
		if err != nil {
			return err
		}
		configs, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		if err != nil {
			return err
		}
		brokers, _, err := admin.DescribeCluster()
		return firstOf(err, expect("a topic", topics[topic].NumPartitions == 2 && len(found[0].Partitions) == 2 &&
			len(configs) > 0 && len(brokers) == 1, topics, found, configs, brokers))
	})
}

func saramaRecords(name string, from, to int) (records []*sarama.ProducerMessage) {
	for number := from; number < to; number++ {
		records = append(records, &sarama.ProducerMessage{
			Topic: name, Key: sarama.StringEncoder(fmt.Sprintf("key-%d", number)), Value: sarama.StringEncoder(valueOf(number)),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: fmt.Append(nil, number)}, {Key: []byte("empty"), Value: []byte{}}},
		})
	}
	return records
}

func saramaProducing(config *sarama.Config, act func(sarama.SyncProducer) error) error {
	producer, err := sarama.NewSyncProducer([]string{server}, config)
	if err != nil {
		return err
	}
	return firstOf(act(producer), producer.Close())
}

func saramaProduce(name string, config *sarama.Config) error {
	return saramaProducing(config, func(producer sarama.SyncProducer) error {
		return producer.SendMessages(saramaRecords(name, 0, recordCount))
	})
}

func saramaNumbers(records []*sarama.ConsumerMessage) (numbers []int, err error) {
	for _, record := range records {
		if len(record.Headers) == 0 {
			return nil, expect("headers", false, record)
		}
		number, err := numberOf(record.Key, record.Value, record.Headers[0].Value, len(record.Headers))
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

func saramaExpect(records []*sarama.ConsumerMessage, count int) error {
	numbers, err := saramaNumbers(records)
	if err != nil {
		return err
	}
	return expectNumbers(numbers, count)
}

// saramaMember reads records in a group until there are enough, and commits them.
type saramaMember struct {
	enough int
	end    context.CancelFunc
	lock   sync.Mutex
	found  []*sarama.ConsumerMessage
}

func (*saramaMember) Setup(sarama.ConsumerGroupSession) error           { return nil }
func (*saramaMember) Cleanup(session sarama.ConsumerGroupSession) error { session.Commit(); return nil }

func (member *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open || !member.take(record) {
				return nil
			}
			session.MarkMessage(record, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (member *saramaMember) take(record *sarama.ConsumerMessage) bool {
	member.lock.Lock()
	defer member.lock.Unlock()
	if len(member.found) == member.enough {
		return false
	}
	member.found = append(member.found, record)
	if len(member.found) == member.enough {
		member.end()
	}
	return true
}

func saramaGroup(group, name string, enough int, config *sarama.Config) ([]*sarama.ConsumerMessage, error) {
	member, err := sarama.NewConsumerGroup([]string{server}, topic+"-"+group, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	reader := &saramaMember{enough: enough, end: cancel}
	for ctx.Err() == nil && err == nil {
		err = member.Consume(ctx, []string{name}, reader)
	}
	err = firstOf(err, member.Close())
	return reader.found, firstOf(err, expect("records", len(reader.found) == enough, len(reader.found)))
}

func saramaConsume() error {
	found, err := saramaGroup("all", topic, recordCount, saramaConfig())
	return firstOf(err, saramaExpect(found, recordCount))
}

func saramaGoOn() error {
	found, err := saramaGroup("go-on", topic, 300, saramaConfig())
	if err != nil {
		return err
	}
	rest, err := saramaGroup("go-on", topic, recordCount-300, saramaConfig())
	return firstOf(err, saramaExpect(append(found, rest...), recordCount))
}

// saramaRead reads records of a partition from an offset on, until enough says so.
func saramaRead(name string, partition int32, offset int64, config *sarama.Config,
	enough func(*sarama.ConsumerMessage, int) bool) (found []*sarama.ConsumerMessage, err error) {
	consumer, err := sarama.NewConsumer([]string{server}, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	reader, err := consumer.ConsumePartition(name, partition, offset)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	late := time.After(wait)
	for {
		select {
		case record := <-reader.Messages():
			found = append(found, record)
			if enough(record, len(found)) {
				return found, nil
			}
		case <-late:
			return found, fmt.Errorf("only %d records came", len(found))
		}
	}
}

func saramaFrom(name string, offset int64, count int, config *sarama.Config) ([]*sarama.ConsumerMessage, error) {
	return saramaRead(name, 0, offset, config, func(_ *sarama.ConsumerMessage, found int) bool { return found == count })
}

func saramaSeek() error {
	found, err := saramaFrom(topic, sarama.OffsetOldest, 100, saramaConfig())
	if err != nil {
		return err
	}
	for _, at := range []int{0, 57, 99} {
		again, err := saramaFrom(topic, found[at].Offset, 1, saramaConfig())
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

func saramaListOffsets() error {
	found, err := saramaFrom(topic, sarama.OffsetOldest, 50, saramaConfig())
	if err != nil {
		return err
	}
	client, err := sarama.NewClient([]string{server}, saramaConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	first, err := client.GetOffset(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	last, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	byTime, err := client.GetOffset(topic, 0, found[49].Timestamp.UnixMilli())
	return firstOf(err, expect("offsets", first == 0 && last > found[49].Offset && byTime <= found[49].Offset, first, last, byTime))
}

func saramaIdempotent() error {
	name := topic + "-idempotent"
	config := saramaOnce()
	config.Producer.Flush.MaxMessages = 20
	if err := firstOf(saramaCreate(name, 1), saramaProduce(name, config)); err != nil {
		return err
	}
	found, err := saramaFrom(name, sarama.OffsetOldest, recordCount, saramaConfig())
	if err != nil {
		return err
	}
	numbers, err := saramaNumbers(found)
	for at, number := range numbers {
		if err := expect("the order", at == number, at, number); err != nil {
			return err
		}
	}
	return err
}

func saramaTransactions() error {
	name := topic + "-transactions"
	if err := saramaCreate(name, 2); err != nil {
		return err
	}
	err := saramaProducing(saramaTransactional(name), func(producer sarama.SyncProducer) error {
		for round := range 4 {
			if err := producer.BeginTxn(); err != nil {
				return err
			}
			if err := producer.SendMessages(saramaRecords(name, round/2*100, round/2*100+100)); err != nil {
				return err
			}
			end := producer.CommitTxn
			if round%2 == 1 {
				end = producer.AbortTxn
			}
			if err := end(); err != nil {
				return err
			}
		}
		if err := firstOf(producer.BeginTxn(), producer.SendMessages(saramaRecords(name, 999, 1000))); err != nil {
			return err
		}
		found, err := saramaGroup("committed", name, 200, saramaCommitted())
		if err := firstOf(err, saramaExpect(found, 200)); err != nil {
			return err
		}
		return producer.AbortTxn()
	})
	if err != nil {
		return err
	}
	_, err = saramaGroup("uncommitted", name, 401, saramaConfig())
	return err
}

func saramaOffsetsInTransaction() error {
	name, group := topic+"-copies", topic+"-copies"
	if err := saramaCreate(name, 1); err != nil {
		return err
	}
	err := saramaProducing(saramaTransactional(name), func(producer sarama.SyncProducer) error {
		for partition := range int32(2) {
			end, err := saramaEnd(partition)
			if err != nil {
				return err
			}
			found, err := saramaRead(topic, partition, sarama.OffsetOldest, saramaConfig(),
				func(record *sarama.ConsumerMessage, _ int) bool { return record.Offset+1 == end })
			if err != nil {
				return err
			}
			for _, end := range []func() error{producer.AbortTxn, producer.CommitTxn} {
				if err := producer.BeginTxn(); err != nil {
					return err
				}
				var records []*sarama.ProducerMessage
				for _, each := range found {
					number, err := numberOf(each.Key, each.Value, each.Headers[0].Value, len(each.Headers))
					if err != nil {
						return err
					}
					records = append(records, saramaRecords(name, number, number+1)...)
				}
				if err := producer.SendMessages(records); err != nil {
					return err
				}
				if err := producer.AddMessageToTxn(found[len(found)-1], group, nil); err != nil {
					return err
				}
				if err := end(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	found, err := saramaFrom(name, sarama.OffsetOldest, recordCount, saramaCommitted())
	if err := firstOf(err, saramaExpect(found, recordCount)); err != nil {
		return err
	}
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}})
		if err != nil {
			return err
		}
		for partition := range int32(2) {
			end, err := saramaEnd(partition)
			block := offsets.GetBlock(topic, partition)
			if err := firstOf(err, expect("a committed offset", block != nil && block.Offset == end, block, end)); err != nil {
				return err
			}
		}
		return nil
	})
}

func saramaEnd(partition int32) (int64, error) {
	client, err := sarama.NewClient([]string{server}, saramaConfig())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return client.GetOffset(topic, partition, sarama.OffsetNewest)
}

func saramaDescribeGroup() error {
	group := topic + "-go-on"
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		listed, err := admin.ListConsumerGroups()
		if err != nil {
			return err
		}
		found, err := admin.DescribeConsumerGroups([]string{group})
		if err != nil {
			return err
		}
		offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}})
		if err != nil {
			return err
		}
		_, isListed := listed[group]
		described := isListed && len(found[0].Members) == 0 && offsets.GetBlock(topic, 0).Offset > 0
		return firstOf(expect("a group", described, listed, found, offsets), admin.DeleteConsumerGroup(group))
	})
}

func saramaCreatePartitions() error {
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		if err := admin.CreatePartitions(topic, 4, nil, false); err != nil {
			return err
		}
		found, err := admin.DescribeTopics([]string{topic})
		return firstOf(err, expect("partitions", len(found[0].Partitions) == 4, found))
	})
}

func saramaDeleteTopic() error {
	return saramaAdmin(func(admin sarama.ClusterAdmin) error {
		if err := admin.DeleteTopic(topic); err != nil {
			return err
		}
		found, err := admin.ListTopics()
		_, isThere := found[topic]
		return firstOf(err, expect("no topic", !isThere, found))
	})
}
