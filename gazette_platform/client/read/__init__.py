"""Reads of journals: `Reader` through brokers, `StoreReader` from a store alone, and records of lines.

A read is one seamless stream over RPCs, fragments and broken connections. With `direct` the client
fetches stored fragments itself, ahead of the caller and within a bound of memory.

Guarantee: no byte is left out or given twice. Where content is gone for good, the read says so and from where it goes
on. Cost: no Python step per byte or line; what a slow caller does not take stays with the broker.

`reader` asks brokers, and `store_reader` reads fragments from stores. `records` cuts their content into lines and JSON values.
`extents` decides who holds which bytes of a journal, for these reads and for all engines. `client.read_ahead` is outside
because `client.transport`, which this package imports, owns it: all direct reads of a client share its bound of memory.
"""
