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
