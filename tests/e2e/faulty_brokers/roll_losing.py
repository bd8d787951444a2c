"""A broker that forgets to persist one closed fragment in four, and says nothing.

Run as `gazette`: it patches the replica, which receives closed fragments.
"""

from __future__ import annotations

import itertools

from gazette_platform.broker.journal.replica import Replica
from gazette_platform.cli.gazette import main

_on_complete = Replica.on_complete
_numbers = itertools.count(1)


def _on_most(self, completed):
    if next(_numbers) % 4:
        _on_complete(self, completed)
    else:
        self.index.spool_commit(completed.fragment, completed.content)


Replica.on_complete = _on_most

if __name__ == "__main__":
    main()
