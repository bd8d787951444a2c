"""Typed tables: Iceberg tables that hold each committed message of their journals, once, as a row.

Nouns: a *typed spec* is what the section `typed:` of a table's spec says of one; a *typed column* is a key
of the records with a type that Iceberg has; *system columns* say of each row where it came from; an
*evolution* has the steps by which an existing table becomes what its spec says, or why it cannot. So far there is
what decides: nothing here reads or writes, and no command makes typed tables yet.
"""

from gazette_platform.lake.typed.partitions import PartitionTransform
from gazette_platform.lake.typed.spec import TypedSpec, read_typed_spec
from gazette_platform.lake.typed.typed_columns import TypedColumn

__all__ = ["PartitionTransform", "TypedColumn", "TypedSpec", "read_typed_spec"]
