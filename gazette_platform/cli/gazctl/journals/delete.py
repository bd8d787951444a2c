"""`gazctl journals delete`."""

from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.gazctl.journals.describe import Standing, asker
from gazette_platform.cli.output import confirmed, note
from gazette_platform.client import AsyncClient, Change
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet


def delete(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without a question.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "-f",
            "--force",
            help="Delete also what cannot be stored first: content that only brokers hold is then lost.",
        ),
    ] = False,
) -> None:
    """Delete journals, and say what of them stays in their stores.

    Content that only brokers hold is stored first. Fragments stay in the store until you remove them there: `gazctl
    journals prune` removes them only while the journal exists. A new journal of the same name continues after them,
    and may need `gazctl journals reset-head`.

    Asks before it deletes. Without a terminal it needs --yes.

    **Examples**

    gazctl journals delete events/clicks

    gazctl journals delete -l name:prefix=test/ --yes
    """
    selection = Selection.of(names, selector)

    async def ask(client: AsyncClient) -> list[Standing]:
        async with asker(client) as standings:
            return await standings.ask(await matching(client, selection))

    found = connected(ctx, ask)
    for each in found:
        note(_stays(each))
    unknown = [each for each in found if each.error is not None]
    if unknown and not force:
        raise ValidationError(
            f"{unknown[0].listing.name}: its content cannot be stored first, and nothing was deleted (mend its "
            "store or its brokers, or give up what only brokers hold with --force)"
        )
    if not yes and not confirmed(f"Delete {_count(len(found))}?"):
        raise ValidationError("nothing was deleted (answer y, or repeat the command with --yes)")

    async def work(client: AsyncClient) -> None:
        to_store = [
            each.listing.name
            for each in found
            if each.stored.unpersisted_bytes and each.listing.spec.fragment.stores
        ]
        await _store(client, to_store, is_needed=not force)
        # Listed again: brokers of Gazette suspend a journal to store its content, which is a new revision.
        created = {each.listing.name: each.listing.created for each in found}
        now = [
            each
            for each in await client.list_snapshot(selection.selector)
            if created.get(each.name) == each.created
        ]
        await client.apply([Change(None, each.name, each.mod_revision) for each in now])
        for each in now:
            note(f"{each.name}: deleted")

    connected(ctx, work)


def _stays(standing: Standing) -> str:
    """What becomes of the content of a journal."""
    name, stores = standing.listing.name, standing.listing.spec.fragment.stores
    if standing.error is not None:
        return f"{name}: its brokers cannot say what is stored ({standing.error})"
    stored, held = standing.stored.stored_bytes, standing.stored.unpersisted_bytes
    if not stored and not held:
        return f"{name}: is empty"
    if not stores:
        return f"{name}: {held} bytes that only brokers hold are lost, as it has no store"
    first = f" ({held} of them are stored first)" if held else ""
    return f"{name}: {stored + held} bytes{first} stay in {stores[0]} below {name}/"


async def _store(client: AsyncClient, names: list[str], *, is_needed: bool) -> None:
    """Have brokers store what only they hold. Raises: ValidationError: they cannot, though it is needed."""
    for name in names:
        try:
            await client.flush(LabelSelector(include=LabelSet.of(name=name)))
        except GazetteError as err:
            if is_needed:
                raise ValidationError(
                    f"{name}: its content cannot be stored first, and nothing was deleted: {err} (mend its "
                    "store, or give up what only brokers hold with --force)"
                ) from err
            note(f"{name}: what only brokers hold is given up ({err})")


def _count(journals: int) -> str:
    return "1 journal" if journals == 1 else f"{journals} journals"
