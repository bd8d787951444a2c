"""A server as a process: start, signals, an orderly departure, and an end in any case.

`running` runs one server until it must leave or fails. SIGTERM starts the `departure`, whose steps each have a deadline; a
second signal ends it early. `watchdog` kills a process that should have ended and did not. `names` names servers that were
given no name.
"""
