"""`gazctl savepoints`: offsets of journals under names."""

from typing import Annotated

import typer

from gazette_platform.cli.connection import connected, parse_selector
from gazette_platform.cli.output import print_json, print_table, print_text
from gazette_platform.client import AsyncClient, Savepoint
from gazette_platform.errors import ValidationError

__all__ = ["create", "delete", "get", "list_savepoints"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the savepoint.")]
_Output = Annotated[str, typer.Option("-o", "--format", help="table or json.", metavar="FORMAT")]


def create(
    ctx: typer.Context,
    name: _Name,
    *,
    selector: Annotated[
        str,
        typer.Option(
            "-l",
            "--selector",
            metavar="SELECTOR",
            help="Labels of the journals whose write heads are kept; default: all.",
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the savepoint of that name.")
    ] = False,
) -> None:
    """Keep the write heads of journals under a name: where to begin reading again.

    **Example**

    gazctl savepoints create before-backfill -l name:prefix=flights/
    """

    async def work(client: AsyncClient) -> None:
        made = await client.create_savepoint(name, parse_selector(selector), replace=replace)
        print_text(f"{made.name}: {made.journals} journals")

    connected(ctx, work)


def list_savepoints(
    ctx: typer.Context,
    *,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only those whose names begin with it.")
    ] = "",
    output: _Output = "table",
) -> None:
    """List savepoints.

    **Example**

    gazctl savepoints list --prefix nightly/
    """
    _check_format(output)

    async def work(client: AsyncClient) -> None:
        found = await client.list_savepoints(prefix)
        if output == "json":
            for savepoint in found:
                print_json(_summary(savepoint))
        else:
            rows = [(s.name, str(s.journals), s.created_at.isoformat()) for s in found]
            print_table(("Name", "Journals", "Created"), rows)

    connected(ctx, work)


def get(ctx: typer.Context, name: _Name, *, output: _Output = "json") -> None:
    """Print the offsets of a savepoint.

    As JSON they are what `gazctl journals read --offsets` takes.

    **Example**

    gazctl savepoints get before-backfill > offsets.json
    """
    _check_format(output)

    async def work(client: AsyncClient) -> None:
        savepoint = await client.get_savepoint(name)
        if output == "json":
            print_json(dict(savepoint.offsets), indent=True)
        else:
            rows = [(journal, str(offset)) for journal, offset in savepoint.offsets.items()]
            print_table(("Journal", "Offset"), rows)

    connected(ctx, work)


def delete(ctx: typer.Context, name: _Name) -> None:
    """Forget a savepoint. Journals are not touched.

    **Example**

    gazctl savepoints delete before-backfill
    """

    async def work(client: AsyncClient) -> None:
        await client.delete_savepoint(name)
        print_text(f"{name}: deleted")

    connected(ctx, work)


def _summary(savepoint: Savepoint) -> dict[str, object]:
    return {
        "name": savepoint.name,
        "journals": savepoint.journals,
        "created_at": savepoint.created_at.isoformat(),
    }


def _check_format(output: str) -> None:
    if output not in {"table", "json"}:
        raise ValidationError(f"expected table or json, got {output!r}", path="--format")
