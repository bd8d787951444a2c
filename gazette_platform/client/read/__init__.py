"""Reads of journals: `Reader` through brokers, `StoreReader` from a store alone, and records of lines.

A read is one seamless stream over RPCs, fragments and broken connections. With `direct` the client
fetches stored fragments itself (`direct`), ahead of the caller and within a bound of memory.
"""
