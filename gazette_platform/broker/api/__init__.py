"""Answers of a broker: one module for each kind of call, and the service that transports call.

`routing` finds the replica that answers: here, or at another broker, to which the call is then proxied. `append` gathers a
small append whole before it takes the journal, so a slow client delays only itself. `read` sends what the index knows, from
spools and stores, and waits at the write head if asked to. Errors of the protocol are statuses in responses, as in Gazette;
everything else ends the call with a gRPC code.

Cost: a task for each open call, except for small appends, which need none.
"""
