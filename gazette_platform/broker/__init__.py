"""The broker: serves journals to clients.

Nouns: *resolver* (which broker serves a journal), *replica* (the local state of an assigned
journal: index, spool, appender), *append state machine* (what an append needs next), *digester*
(brings a spool's SHA-1 and compressed form up to date after its commits), *service* (the RPCs, as
a transport calls them).

Guarantee: an append is atomic, and is answered only when it is part of the journal; bytes of a
journal never change. All that
a restart of a broker needs is in etcd and in the stores, except content that is not yet persisted.
"""
