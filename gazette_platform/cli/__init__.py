"""The programs: ``gazette`` runs brokers and platforms, ``gazctl`` works with journals.

Each command is a thin function: options in, calls of a library, text out. Failures exit non-zero
with one line on stderr that says what failed, on which thing, and what to do next.
"""

import os

# Before gRPC's library is loaded: its own lines about refused ports and handshakes would stand
# between a command and its one message, which says the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# A command may have talked to brokers when it starts Spark. gRPC's handlers of forks, which nothing
# here needs, can break the child before it becomes a JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def _spare_loopback_proxies() -> None:
    # http_proxy is for other machines, and a platform's servers are on this one:
    # programs that this one starts, and libraries in it, are to ask them directly.
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if given.strip() != "*":
        hosts = [*filter(None, given.split(",")), "localhost", "127.0.0.1"]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


_spare_loopback_proxies()
