"""What Trino calls its catalogs of raw tables, of Iceberg tables, and of typed ones among these.

A name is needed wherever a statement crosses from one to the other, and in the view ``…_exact``, which
Trino reads in the catalog that its definition names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

from gazette_platform.errors import ValidationError

HIVE: Final = "hive"
ICEBERG: Final = "iceberg"

# Trino takes a catalog's name from that of its properties file; these need no escapes in quotes.
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_\-]*")
# A catalog is followed by a schema; what follows a dot or a quote is something else.
_CATALOG: Final = re.compile(rf'(?<![\w".])({HIVE}|{ICEBERG})\.(?=[\w"])')


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrinoCatalogs:
    """Names of two catalogs over the same metastore, and of that of typed tables.

    Raises: ValidationError: a name is none that Trino takes.
    """

    hive: str = HIVE
    """Of the Hive connector: raw tables."""
    iceberg: str = ICEBERG
    """Of the Iceberg connector: rollups."""
    typed: str = ""
    """Of the Iceberg connector: typed tables. That of rollups, unless these are in a catalog of their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "typed", self.typed or self.iceberg)
        for variable, name in (
            ("GAZETTE_TRINO_CATALOG", self.hive),
            ("GAZETTE_TRINO_ICEBERG_CATALOG", self.iceberg),
            ("GAZETTE_TRINO_TYPED_CATALOG", self.typed),
        ):
            if not _NAME.fullmatch(name):
                raise ValidationError(
                    f"not a catalog's name (lower-case letters, digits, _ and -): {name!r}",
                    path=variable,
                )

    def in_sql(self, sql: str) -> str:
        """A statement of ours, in which catalogs are called `hive` and `iceberg`, by these names.

        >>> TrinoCatalogs(hive="raw-lake").in_sql("SELECT * FROM hive.s.t")
        'SELECT * FROM "raw-lake".s.t'
        """
        names = {HIVE: self.hive, ICEBERG: self.iceberg}

        def named(match: re.Match[str]) -> str:
            name = names[match[1]]
            return match[0] if name == match[1] else f'"{name}".'

        return _CATALOG.sub(named, sql)
