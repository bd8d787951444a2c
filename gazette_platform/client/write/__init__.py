"""Appends to journals: one RPC (`append`), and writers that gather many small writes in the background.

Every append is atomic and at least once. Writers keep the order of writes and bound the bytes that wait.
"""
