"""`gazctl journals reset-head`, `flush`, `suspend`, `store-health` and `delete`."""

import typer

from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames, seconds_of
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.gazctl.journals.describe import Standing, asker
from gazette_platform.cli.output import confirmed, note, print_text
from gazette_platform.client import AsyncClient, Change, HeadState
from gazette_platform.errors import GazetteError, SpoolsAwaited, StoreUnavailable, ValidationError
from gazette_platform.ops.text import counted
from gazette_platform.protocol import LabelSelector, LabelSet


def reset_head(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Let appends continue after everything that the fragment stores hold.

    Needed after all brokers of a journal lost their disks. A broker that comes back with its spool
    has all that it acknowledged, and needs no reset. So appends wait for one of those that held the
    journal, and this command says for each journal which ones, and the offset from which on only
    their spools hold content. Resetting the head gives that up: other content gets these offsets, and
    a broker that comes back nevertheless sets aside what it has there.

    After etcd lost its data, no record says which brokers held a journal, and appends are refused as well.
    Start all brokers with their spools first: what only an absent one holds is given up.

    Nothing is done to journals that take appends. For all others it asks. Without a terminal it needs --yes.

    **Example**

    gazctl journals reset-head a/journal --dry-run

    Options:
        --dry-run: Say what would be done and lost, and do nothing.
        -y, --yes: Give up what is said to be lost, without a question.
    """
    selection = Selection.of(names, selector)

    async def check(client: AsyncClient) -> dict[str, HeadState]:
        found = {}
        for journal in await matching(client, selection):
            if journal.spec.is_fully_suspended:
                note(f"{journal.name}: skipped, it is fully suspended")
                continue
            found[journal.name] = await client.check_head(journal.name)
        return found

    states = connected(ctx, check)
    lossy = [name for name, state in states.items() if state.awaited or state.is_refused]
    for name in lossy:
        note(_loss(name, states[name], is_given_up=yes and not dry_run))
    if dry_run:
        for name, state in states.items():
            would = "would be" if state.is_refused else "is"
            print_text(f"{name}: head {would} {state.head}")
        return
    may_give_up = bool(lossy) and (yes or confirmed(f"Give that up in {len(lossy)} journals?"))

    async def work(client: AsyncClient) -> None:
        for name, state in states.items():
            if may_give_up or name not in lossy:
                head = await client.reset_head(name, give_up=bool(state.awaited))
                print_text(f"{name}: head is {head}")

    connected(ctx, work)
    if lossy and not may_give_up:
        raise SpoolsAwaited(
            f"content would be given up, nothing was done to {', '.join(lossy)} (start one of the "
            "brokers that hold it with its spool; or, if they are lost, repeat with --yes)"
        )


def _loss(name: str, state: HeadState, *, is_given_up: bool) -> str:
    who = ", ".join(one.name for one in state.awaited) or "brokers that are away"
    running = ", ".join(one.name for one in state.awaited if one.is_running)
    verb = "is" if is_given_up else "would be"
    text = (
        f"{name}: content from {state.head} on that only the spools of {who} hold {verb} given up"
    )
    if not running:
        return text
    return f"{text} ({running} runs, and stores what it has, or came back without its spool)"


def flush(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    timeout: str = "1m",
) -> None:
    """Close open fragments now, and wait until all content is in the fragment stores.

    Fragments close by themselves when they have their length, or their flush interval ends.

    **Example**

    gazctl journals flush flights/

    Options:
        --timeout DURATION: How long to wait, as in 1m30s.
    """
    selection = Selection.of(names, selector)
    timeout_s = seconds_of(timeout, "--timeout")

    async def work(client: AsyncClient) -> None:
        await matching(client, selection)
        for name, end in (await client.flush(selection.selector, timeout_s=timeout_s)).items():
            print_text(f"{name}: all below {end} is in the store")

    connected(ctx, work)


def suspend(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    force: bool = False,
) -> None:
    """Suspend journals, which then need fewer brokers, until they are appended to again.

    A journal is suspended if no content is left in brokers only, and nothing was stored for as long as
    their flush interval is, or for a day if they have none.

    **Example**

    gazctl journals suspend archive/

    Options:
        -f, --force: Also journals that are not flushed: flush now.
    """
    selection = Selection.of(names, selector)

    async def work(client: AsyncClient) -> None:
        for journal in await matching(client, selection):
            if journal.spec.is_fully_suspended:
                note(f"{journal.name}: is fully suspended already")
            elif await client.suspend(journal.name, force=force):
                print_text(f"{journal.name}: suspended")
            else:
                print_text(
                    f"{journal.name}: not suspended, as not all of it has been in its store for a flush "
                    "interval (--force suspends it now)"
                )

    connected(ctx, work)


def store_health(
    ctx: typer.Context, store_url: str, *, check_delete_prefix: str | None = None
) -> None:
    """Ask a broker whether it can use a fragment store.

    **Example**

    gazctl journals store-health file:///

    Options:
        STORE_URL: Store, as in file:/// or file:///a/folder/.
        --check-delete-prefix PREFIX: Also write and delete a probe under this prefix of the store.
    """

    async def work(client: AsyncClient) -> None:
        health = await client.store_health(store_url, check_delete_prefix=check_delete_prefix)
        if not health.is_healthy:
            raise StoreUnavailable(f"fragment store {store_url} is not healthy: {health.error}")
        print_text(f"Fragment store {store_url} is healthy")

    connected(ctx, work)


def delete(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    yes: bool = False,
    force: bool = False,
) -> None:
    """Delete journals, and say what of them stays in their stores.

    Content that only brokers hold is stored first. Fragments stay in the store until you remove them there: `gazctl
    journals prune` removes them only while the journal exists. A new journal of the same name continues after them,
    and may need `gazctl journals reset-head`.

    Asks before it deletes. Without a terminal it needs --yes.

    **Examples**

    gazctl journals delete events/clicks

    gazctl journals delete -l name:prefix=test/ --yes

    Options:
        -y, --yes: Delete without a question.
        -f, --force: Delete also what cannot be stored first: content that only brokers hold is then lost.
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
    if not yes and not confirmed(f"Delete {counted(len(found), 'journal')}?"):
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
