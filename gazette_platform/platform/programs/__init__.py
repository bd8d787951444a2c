"""Programs that the supervisor starts by ``python -m``, each a process of its own.

They are the embedded metastore, Dagster's web server behind a guard against foreign web pages, Dagster's code server, and
the continuous run of typed tables. Each ends with its supervisor, or with the server that it wraps.
"""
