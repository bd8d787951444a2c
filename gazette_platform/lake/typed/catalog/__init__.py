"""A table in its catalog: the doors of three kinds, and publishing, which fences one change of metadata."""
