"""Prunes of raw tables: accounts follow fragments that brokers deleted, and empty Hive partitions are dropped.

`verdict` judges, without I/O, what became of the fragments of a partition: keep, wait, doubt, shrink or empty. `shrinker`
collects the evidence and applies the verdict; `recounting` counts what a prune left, over several ticks if it is much.
Guarantee: a store that is unmounted, replaced or away is never taken for a prune, and no file is deleted here.

Cost: a listing of brokers, directory and store for each partition that may have lost fragments.
"""
