"""A seeded fuzzer of brokers: `python -m tests.fuzz --seed 7 --minutes 10`, or `make fuzz`.

A *case* is a named input: a list of *steps*, each of them one thing that is done to two real brokers,
their etcd or their store (`cases`). Cases of the *corpus* run first, then those that generators make
from the seed, alone or as mutations of others (`corpus`, `generators`, `grammar`). The *driver*
performs steps and hands out answers; the *oracle* judges answers, logs, processes and memory. A
*pulse*, a process of its own, uses journals that no input touches, and reports when brokers were late.
Parsers are fuzzed in process beside it (`parsers`).

A run costs two brokers and an etcd, and at most `--rate` cases a second.
"""
