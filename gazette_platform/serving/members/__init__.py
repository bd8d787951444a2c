"""Several server processes under one supervisor, which looks like one server from outside.

Nouns: supervisor (starts members, and starts them again), member (a server process), line (the socket
between both: standard input of the member). Guarantee: a member that ends is started again; when the
supervisor leaves, or is gone, all members leave. Cost: nothing per call, because clients reach
members directly.
"""
