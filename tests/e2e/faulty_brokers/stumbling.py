"""A broker that serves all calls well, and meets an unforeseen error at its side.

Run as `gazette`: it patches the class of the key space that notifies observers of changes.
"""

from __future__ import annotations

from gazette_platform.cli.gazette import main
from gazette_platform.keyspace import KeySpace

_finish = KeySpace._finish


def _finish_and_stumble(self, header, revision):
    _finish(self, header, revision)
    with self._faults.contained("observer", "a change of the keys"):
        raise KeyError("stumbled")


KeySpace._finish = _finish_and_stumble

if __name__ == "__main__":
    main()
