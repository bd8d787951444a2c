"""Specs as people write them: YAML documents, and the trees of journals that they hold.

Nouns: *node* (a directory or a journal of a tree), *push-down* (children take what they leave out
from their parents), *hoisting* (the way back). Documents are read strictly: what is not known, or
said twice, is an error with its line.
"""
