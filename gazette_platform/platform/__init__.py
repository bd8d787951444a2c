"""The platform on one machine: every server it needs, installed, started and watched.

`tools` installs Java, etcd, Trino and Spark's jars into a cache folder. A `Component` says how one
server is started and when it is ready; the supervisor starts them in the order of their needs,
keeps their ports over restarts, starts brokers again, and stops all when another one dies.
"""
