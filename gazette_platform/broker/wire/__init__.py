"""Calls to other brokers.

The broker imports no gRPC; `serving` has what makes and serves calls.
"""
