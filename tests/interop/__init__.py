"""Clients and servers of other gRPC libraries, which tests/extended/test_h2_interop.py runs against our HTTP/2.

All of them know one service, ``test.Echo``. Its messages are plain bytes, so that no code is generated.

| method | does |
|---|---|
| Unary | answers its request |
| Upload | answers ``%d messages, %d bytes`` |
| Download | takes ``COUNT SIZE``, and sends so many messages, each of bytes that are its number modulo 256 |
| Both | sends the metadata ``greeting: hello``, and as ``seen`` what it got as ``x-sent``; answers each message reversed |
| Wait | answers ``waited`` once the gate is open |
| Fail | takes the name of a code, and fails by it with the text ``why: 100 % of ü`` |
| Early | answers ``early`` to the first message of a stream |
| Counts | answers how many handlers of Wait have begun, and how many were cancelled |
| Name | answers which server this is |

A server takes messages of up to 8 MiB.

A client takes the options ``-address``, ``-ca``, ``-cert`` and ``-key``, and one word. After ``checks`` it makes
calls of all kinds, and writes a line of JSON for each check: its name, and the problem if there is one. After
``drain`` it calls Wait, writes ``{"event": "waiting"}``, and calls Name without a pause, until Wait ends. Once
another server answers, it writes ``{"event": "moved"}``. No call may fail.

The server of grpc-go takes the same options and the word ``server``. It writes its port, opens its gate at a line on
stdin, and leaves at SIGTERM.
"""
