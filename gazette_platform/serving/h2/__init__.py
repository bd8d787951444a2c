"""gRPC over HTTP/2, written straight on asyncio's protocols.

`frames`, `hpack`, `requests`, `responses`, `stream` and `machine` decide and do no I/O: `Machine` takes the
bytes that a client sent, collects the bytes that answer them, and calls a hook for each event.
`connection` acts: it owns the transport and the tasks of its calls. `call` is what handlers see. `server`
listens, sweeps over its connections and drains them. No module here imports gRPC.
"""
