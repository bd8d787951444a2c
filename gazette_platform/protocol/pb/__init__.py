"""Generated from ``proto/`` by ``make gen``, and never edited; ``make gen-check`` compares.

grpcio-tools is pinned to the lowest release of grpcio that the package accepts, because generated
code refuses to load under an older one.
"""
