"""`gazctl journals reset-head`, `flush`, `suspend` and `store-health`."""

from typing import Annotated

import typer

from gazette_platform.cli.connection import Selector, connected, matching
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import AsyncClient, JournalListing
from gazette_platform.errors import StoreUnavailable, ValidationError
from gazette_platform.protocol import SuspendLevel, parse_duration

__all__ = ["flush", "is_fully_suspended", "reset_head", "store_health", "suspend"]


def is_fully_suspended(journal: JournalListing) -> bool:
    """Whether no broker serves the journal: then it has nothing to ask about."""
    suspend = journal.spec.suspend
    return suspend is not None and suspend.level is SuspendLevel.FULL


def reset_head(ctx: typer.Context, *, selector: Selector) -> None:
    """Let appends continue behind everything that the fragment stores hold.

    Needed after all brokers of a journal lost their disks at once: appends then fail with
    INDEX_HAS_GREATER_OFFSET. Run it when former brokers have persisted what they hold, or are
    known to be gone; content that they persist later, at offsets below the new head, would
    contradict what is appended there.

    **Example**

    gazctl journals reset-head -l name=a/journal
    """

    async def work(client: AsyncClient) -> None:
        for journal in await matching(client, selector):
            if is_fully_suspended(journal):
                note(f"{journal.name}: skipped, it is fully suspended")
                continue
            print_text(f"{journal.name}: head is {await client.reset_head(journal.name)}")

    connected(ctx, work)


def flush(
    ctx: typer.Context,
    *,
    selector: Selector,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait, as in 1m30s.")
    ] = "1m",
) -> None:
    """Close open fragments now, and wait until all content is in the fragment stores.

    Fragments close by themselves when they have their length, or their flush interval ends.

    **Example**

    gazctl journals flush -l name:prefix=flights/
    """
    try:
        timeout_s = parse_duration(timeout) / 1e9
    except ValidationError as err:
        raise err.within("--timeout") from err

    async def work(client: AsyncClient) -> None:
        await matching(client, selector)
        for name, end in (await client.flush(selector, timeout_s=timeout_s)).items():
            print_text(f"{name}: all below {end} is in the store")

    connected(ctx, work)


def suspend(
    ctx: typer.Context,
    *,
    selector: Selector,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Also journals that are not flushed: flush now.")
    ] = False,
) -> None:
    """Suspend journals, which then need fewer brokers, until they are appended to again.

    **Example**

    gazctl journals suspend -l name:prefix=archive/
    """

    async def work(client: AsyncClient) -> None:
        for journal in await matching(client, selector):
            if is_fully_suspended(journal):
                note(f"{journal.name}: is fully suspended already")
            elif await client.suspend(journal.name, force=force):
                print_text(f"{journal.name}: suspended")
            else:
                print_text(f"{journal.name}: not suspended, not all of it is flushed (--force)")

    connected(ctx, work)


def store_health(
    ctx: typer.Context,
    store_url: Annotated[
        str, typer.Argument(metavar="STORE_URL", help="Store, as in file:/// or file:///a/folder/.")
    ],
    *,
    check_delete_prefix: Annotated[
        str | None,
        typer.Option(
            "--check-delete-prefix",
            metavar="PREFIX",
            help="Also write and delete a probe under this prefix of the store.",
        ),
    ] = None,
) -> None:
    """Ask a broker whether it can use a fragment store.

    **Example**

    gazctl journals store-health file:///
    """

    async def work(client: AsyncClient) -> None:
        health = await client.store_health(store_url, check_delete_prefix=check_delete_prefix)
        if not health.is_healthy:
            raise StoreUnavailable(f"fragment store {store_url} is not healthy: {health.error}")
        print_text(f"Fragment store {store_url} is healthy")

    connected(ctx, work)
