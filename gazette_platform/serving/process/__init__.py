"""A server as a process: its signals, its end (which does not wait for ever), and its names."""
