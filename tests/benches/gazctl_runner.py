"""Runs `gazctl` to its end in this process: starting one takes a second."""

from __future__ import annotations

import io
import sys
import types

from gazette_platform.cli.gazctl import main

__all__ = ["TWO_JOURNALS", "gazctl_runner"]

TWO_JOURNALS = b"""
name: a/
replication: 1
fragment:
  length: 1048576
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1m
  retention: 1h
children:
- name: a/one
- name: a/two
  labels: [{name: env, value: test}]
"""


def gazctl_runner(address, monkeypatch, folder, capfdbinary):
    """What runs a command in `folder`, which is its user's home, too. It returns code, out and err."""
    monkeypatch.setenv("BROKER_ADDRESS", address)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)

    def run(*args, group="journals", stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([group, *map(str, args)])
        out, err = capfdbinary.readouterr()
        return types.SimpleNamespace(code=code, out=out, err=err.decode())

    return run
