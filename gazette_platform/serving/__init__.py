"""What servers of brokers and of consumers have in common: calls, tokens, certificates, pages.

`interface` says what a transport gives to the logic of calls and takes from it, in terms of bytes: logic
imports no gRPC. There are two transports: `grpc_transport` uses
the gRPC library, `h2` our own HTTP/2. `process` runs a server until it has to leave, and `members` runs several as one.
"""
