"""`gazctl savepoints`: offsets of journals under names."""

from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import TableOrJson, parse_selector
from gazette_platform.cli.gazctl.connection import connect, connected, noun
from gazette_platform.cli.output import print_json, print_table, print_text
from gazette_platform.client import AsyncClient, Savepoint

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the savepoint.")]


_Output = Annotated[TableOrJson, typer.Option("-o", "--format", help="Output format.")]


def create(ctx: typer.Context, name: _Name, *, selector: str = "", replace: bool = False) -> None:
    """Keep the write heads of journals under a name: where to begin reading again.

    **Example**

    gazctl savepoints create before-backfill -l name:prefix=flights/

    Options:
        -l, --selector SELECTOR: Labels of the journals whose write heads are kept; default: all.
        --replace: Replace the savepoint of that name.
    """

    async def work(client: AsyncClient) -> None:
        made = await client.create_savepoint(name, parse_selector(selector), replace=replace)
        print_text(f"{made.name}: {made.journals} journals")

    connected(ctx, work)


def list_savepoints(ctx: typer.Context, *, prefix: str = "", output: _Output = "table") -> None:
    """List savepoints.

    **Example**

    gazctl savepoints list --prefix nightly/

    Options:
        --prefix: Only those whose names begin with it.
    """

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

    As JSON they are what `gazctl journals read --offsets` takes. Entries such as `a/journal#created` say which journal
    the offset belongs to: if it was deleted and made again since, a read refuses.

    **Example**

    gazctl savepoints get before-backfill > offsets.json
    """

    async def work(client: AsyncClient) -> None:
        savepoint = await client.get_savepoint(name)
        if output == "json":
            print_json(savepoint.places, indent=True)
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


app = noun(
    "savepoints",
    connect,
    "gazette_platform.cli.gazctl",
    {
        "create": "savepoints:create",
        "list": "savepoints:list_savepoints",
        "get": "savepoints:get",
        "delete": "savepoints:delete",
    },
    help_text="Keep offsets of journals under names. Not of Gazette's brokers.",
)
