"""How a broker leaves, how the others find out that one is gone, and what one does that comes back.

`eviction` decides, without clock or I/O, when a peer counts as crashed; `evictor` looks and acts. `leaving` hands over
journals; `former` looks for the keys and spools of processes that ended here.
"""
