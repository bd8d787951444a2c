"""Fragments that a person set aside: the journal's as ever, and rows of no table.

The file of such a fragment lies in the folder ``_aside`` of its journal, below that in the folders in which it
lay before. Brokers list it there and serve it to readers, for whom nothing changes. Engines pass over folders
whose names begin with ``_``, and no Hive partition is in one. So what is aside is known from what brokers
list; accounts know it, too, so that a listing which is older than the move changes nothing.

Why it was set aside is in a *note*: a file beside it, whose name begins with a dot, which brokers pass over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gazette_platform.protocol import Fragment

ASIDE: Final = "_aside"
"""Name of the folder in that of a journal."""


def is_aside(fragment: Fragment) -> bool:
    """Whether brokers list the fragment as one that was set aside."""
    postfix = fragment.path_postfix
    return postfix == ASIDE or postfix.startswith(f"{ASIDE}/")


def aside_directory(journal: str, directory: str) -> str:
    """Where files of a directory of a journal lie while they are aside.

    >>> aside_directory("a/b", "a/b/date=2026-01-02"), aside_directory("a/b", "a/b")
    ('a/b/_aside/date=2026-01-02', 'a/b/_aside')
    """
    return f"{journal}/{ASIDE}{directory[len(journal) :]}"


def home_directory(fragment: Fragment) -> str:
    """The directory of a fragment below the prefix of its store; of one that is set aside, its former one."""
    directory = fragment.content_path.rpartition("/")[0]
    if not is_aside(fragment):
        return directory
    journal = fragment.journal
    return journal + directory[len(journal) + 1 + len(ASIDE) :]


def note_path(path: str) -> str:
    """Where the note about a file is.

    >>> note_path("a/b/_aside/0-9.gz")
    'a/b/_aside/.0-9.gz.json'
    """
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.json"
