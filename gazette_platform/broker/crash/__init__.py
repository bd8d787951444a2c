"""How a broker leaves, and how the others find out that one is gone.

`eviction` decides, without clock or I/O, when a peer counts as crashed; `evictor` looks and acts.
"""
