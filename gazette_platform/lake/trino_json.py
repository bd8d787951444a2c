"""SQL of Trino that gives the JSON text of a column the type that its table spec declares.

It agrees with Trino's own reader of JSON, except for two things: a value of another shape is NULL rather than an error,
and keys are matched by case. It decodes one level at a time: a cast of a whole value to a row or map would give NULL
for all of it if one part does not fit, and would refuse objects and lists where the type is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_platform.lake.schema import ColumnType

__all__ = ["type_sql", "typed_sql"]

_NESTED = frozenset({"array", "map", "struct"})


def typed_sql(text: str, kind: ColumnType) -> str:
    """Return an expression of type `kind`.

    Args:
        text: an expression of type varchar: a text, number or truth value as it is, an object or list as JSON.
        kind: the declared type.
    """
    if kind.name in _NESTED:
        return _of_json(f"TRY(json_parse({text}))", kind, 0)
    return _of_text(text, kind)


def type_sql(kind: ColumnType) -> str:
    """Return the name of a type, with the names of fields in quotes, as SQL has it.

    >>> from gazette_platform.lake.schema import parse_type
    >>> type_sql(parse_type("map<string,struct<aB:int>>"))
    'map(varchar,row("ab" integer))'
    """
    match kind.name:
        case "array" | "map":
            return f"{kind.name}({','.join(map(type_sql, kind.arguments))})"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            typed = ",".join(f'"{name.lower()}" {type_sql(of)}' for name, of in fields)
            return f"row({typed})"
        case _:
            return kind.trino


def _of_text(text: str, kind: ColumnType) -> str:
    return text if kind.name == "string" else f"TRY_CAST({text} AS {type_sql(kind)})"


def _of_json(value: str, kind: ColumnType, depth: int) -> str:
    """Return an expression of type `kind` for one of type JSON; `depth` makes names of lambdas' arguments differ."""
    name = f"v{depth}"
    match kind.name:
        case "array":
            item = _of_json(name, kind.arguments[0], depth + 1)
            return f"transform(TRY_CAST({value} AS array(json)), {name} -> {item})"
        case "map":
            item = _of_json(name, kind.arguments[1], depth + 1)
            parts = f"TRY_CAST({value} AS map(varchar,json))"
            return f"transform_values({parts}, (k{depth}, {name}) -> {item})"
        case "struct":
            fields = ", ".join(
                _of_json(f"element_at({name}, '{key}')", of, depth + 1)
                for key, of in zip(kind.field_names, kind.arguments, strict=True)
            )
            # A lambda gives the value a name, so that it is decoded once for all fields.
            parts = f"ARRAY[TRY_CAST({value} AS map(varchar,json))]"
            row = f"IF({name} IS NOT NULL, CAST(ROW({fields}) AS {type_sql(kind)}))"
            return f"element_at(transform({parts}, {name} -> {row}), 1)"
        case "string":
            # The text of a scalar; else JSON. A null of JSON is not text.
            return (
                f"coalesce(json_extract_scalar({value}, '$'), nullif(json_format({value}), 'null'))"
            )
        case _:
            return _of_text(f"json_extract_scalar({value}, '$')", kind)
