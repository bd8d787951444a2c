"""Specs as people write them: YAML documents, and the trees of journals that they hold.

Nouns: *node* (a directory or a journal of a tree), *push-down* (children take what they leave out
from their parents), *hoisting* (the way back). Documents are read strictly: what is not known, or
said twice, is an error with its line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.yaml_specs.journal_tree import JournalNode
    from gazette_platform.yaml_specs.journal_yaml import parse_journal_tree, to_journal_tree

__all__ = ["JournalNode", "parse_journal_tree", "to_journal_tree"]

if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        # Imported when first used: who reads other documents needs no trees of journals.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "journal_tree" if name == "JournalNode" else "journal_yaml"
        found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return found
