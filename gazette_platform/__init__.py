"""A streaming log whose storage is the data lake itself."""

import os

# gRPC's newer event engine hands each read and write to another thread, which costs small messages
# a fifth of their rate. Read once, when grpc is imported: so it stands here, and yields to the user.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
