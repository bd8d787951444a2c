"""Answers of a broker: one module for each kind of call, the `service` that transports call, and the HTTP gateway.

`routing` finds the replica that answers: here, or at another broker, to which the call is then proxied. `append` gathers a
small append whole before it takes the journal, so a slow client delays only itself. `read` sends what the index knows, from
spools and stores, and waits at the write head if asked to. Errors of the protocol are statuses in responses, as in Gazette;
everything else ends the call with a gRPC code.

`gateway` serves GET, HEAD and PUT of journals for programs without gRPC; `gateway_messages` translates, without I/O, between
HTTP and the broker's calls. Queries and headers are those of Gazette's gateway, except where `gateway` says so. A GET with
``block=true`` follows a journal; browsers get it as server-sent events. Requests that a foreign web page made are refused.

Cost: a task for each open call, except for small appends, which need none.
"""
