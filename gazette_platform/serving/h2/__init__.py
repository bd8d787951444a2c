"""gRPC over HTTP/2, written straight on asyncio's protocols.

`frames`, `hpack`, `responses`, `stream`, `endpoint` and its two sides, `server_machine` and
`client_machine`, decide and do no I/O: they take the bytes that the other side sent, collect those to send,
and call a hook for each event.
`server` acts: it listens, owns the transports and the tasks of calls, sweeps over its connections and drains
them. `server_call` is what handlers see; `handling` runs them. `channel` makes calls, which `client_call` shows to callers. `carrier` has
what both sides need. No module here imports gRPC.

Guarantee: what a peer may send, hold and delay is bounded (`frames.Limits`), and every wait for one has a deadline. Cost: a
small call that has arrived whole needs no task, and all output of a turn of the event loop is one write.
"""
