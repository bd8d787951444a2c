"""A table in its catalog: the doors of three kinds, and publishing, by which one change of metadata is fenced."""
