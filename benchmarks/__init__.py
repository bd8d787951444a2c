"""Load on a real broker, measured from outside: throughput, latency, CPU and memory.

`make bench` runs all cases and writes ``results/latest.json``; ``python -m benchmarks --help``
says what else there is. Names of figures end with their unit, and keep their meaning for ever.
"""
