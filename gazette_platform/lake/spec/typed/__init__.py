"""What the section `typed:` of a table spec says: the Iceberg table, its columns, and when it is made.

Nouns: a *typed spec* is what a good section says; a *typed column* is a key of the records with a type that Iceberg
has; *system columns* say of each row where it came from; a *partition transform* is what rows of one data file
have in common.

Apart from `lake.typed`, which makes such tables, because table specs are read with their section and must not need
what works by them. Nothing here does I/O.
"""

from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.spec.typed.spec import TypedSpec, read_typed_spec
from gazette_platform.lake.spec.types import PartitionTransform

__all__ = ["PartitionTransform", "TypedColumn", "TypedSpec", "read_typed_spec"]
