"""How a broker leaves, how the others find out that one is gone, and what one does that comes back.

`eviction` decides, without clock or I/O, when a peer counts as crashed; `peer_probes` connects to peers and
has etcd revoke their leases. `handover` gives
journals to others as a broker leaves, and takes over what processes that ended here have left.

Guarantee: no live process is evicted by mistake, as far as `eviction` says; what was acknowledged is with a broker
that stays, or noted in etcd, or on the disk that the next process takes over.

Cost: four plain TCP connections a second to each broker, and none of it on the way of an append.
"""
