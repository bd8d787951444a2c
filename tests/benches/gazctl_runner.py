"""Runs `gazctl` to its end in this process: starting one takes a second."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import threading
import types

from gazette_platform.cli.gazctl import main

__all__ = ["SMALL_FRAGMENTS", "TWO_JOURNALS", "gazctl_runner", "started_gazctl"]

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

SMALL_FRAGMENTS = """
name: {root}/
replication: 1
labels: [{{name: content-type, value: application/x-ndjson}}]
fragment:
  length: 1024
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1s
  path_postfix_template: date={{{{ .Spool.FirstAppendTime.Format "2006-01-02" }}}}
children:
- name: {root}/one
- name: {root}/two
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


@contextlib.contextmanager
def started_gazctl(address, folder):
    """What starts `gazctl journals` as a process in `folder`; all are ended and their pipes closed."""
    processes = []

    def run(*args):
        command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", *map(str, args)]
        process = subprocess.Popen(
            [*command, "--broker.address", address],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watchdog = threading.Timer(40, process.kill)
        watchdog.start()
        processes.append((process, watchdog))
        return process

    yield run
    for process, watchdog in processes:
        watchdog.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
