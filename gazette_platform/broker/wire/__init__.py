"""The seam between broker logic and what carries its messages.

`interface` says what a transport gives to the broker and takes from it, in terms of bytes: logic
imports no gRPC. `grpc_server` is the transport in use.
"""
