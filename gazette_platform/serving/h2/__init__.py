"""gRPC over HTTP/2, written straight on asyncio's protocols.

`frames`, `hpack`, `requests`, `responses`, `answers`, `stream`, `endpoint` and its two sides, `machine` and
`client_machine`, decide and do no I/O: they take the bytes that the other side sent, collect those to send,
and call a hook for each event.
`connection` acts: it owns the transport and the tasks of its calls. `call` is what handlers see. `server`
listens, sweeps over its connections and drains them. `channel` makes calls. No module here imports gRPC.
"""
