"""Appends to journals: one RPC (`append`), and writers that gather many small writes in the background.

Every append is atomic and at least once. Writers keep the order of writes and bound the bytes that wait.
Cost: an append is one RPC, and a small one of them one message; writers share one RPC among many writes.
"""
