"""Sums of streams, each checked by who sent it: an example of a consumer, and what the soak runs.

`chunker` publishes streams of random chunks, interleaved over partitioned journals. `summer` is a consumer with a
running sum for each stream, in SQLite or in RocksDB; with the last chunk of a stream it publishes the sum. The
chunker reads that, and compares. A chunk that were lost, or counted twice, would be seen by both.
"""
