"""Calls to other brokers.

Broker logic imports no gRPC; here, and in `serving`, is what does.
"""
