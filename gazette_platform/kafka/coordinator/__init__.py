"""Consumer groups and transactions: the part of a gateway that coordinates them.

`groups` and `transactions` decide, without I/O; what they decide is in etcd before anything follows from it.
"""
