"""`gazctl journals verify`."""

import enum
import random
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gazette_platform.cli.connection import FileRoot, connected, matching
from gazette_platform.cli.output import note, print_json, print_table
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.client import AsyncClient
from gazette_platform.errors import DataError, GazetteError

if TYPE_CHECKING:
    from gazette_platform.cli.verifying import Verified
    from gazette_platform.fragment.audit import Finding

__all__ = ["verify"]


class VerifyFormat(enum.StrEnum):
    """Formats of findings."""

    TABLE = "table"
    JSON = "json"


def verify(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: Annotated[
        VerifyFormat, typer.Option("-o", "--format", help="Output format.")
    ] = VerifyFormat.TABLE,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            min=0,
            metavar="COUNT",
            help="Read only so many fragments of each journal, chosen at random. 0 reads none.",
        ),
    ] = None,
    file_root: FileRoot = None,
) -> None:
    """Verify that stores hold the content of journals, whole and unchanged.

    Lists the stores and asks the brokers. Then reads each stored fragment, and compares it with the length
    and SHA-1 in its name. Nothing is changed.

    Faults: gap (no store and no broker has these offsets), conflict (two contents of the same offsets),
    missing (brokers list it, the store lacks it), length, digest, codec (it cannot be decompressed),
    strange (the name is not that of a fragment), unread (the store does not answer). An overlap is
    reported, and is not a fault: it is left by a fail-over.

    Exits with 1 if there is a fault. Other journals are verified all the same. JSON is one line per finding,
    and one per journal with `finding: summary`.

    **Examples**

    gazctl journals verify -l name:prefix=a/

    gazctl journals verify a/journal --sample 100 -o json
    """
    selection = Selection.of(names, selector)
    is_json = output_format is VerifyFormat.JSON

    async def work(client: AsyncClient) -> "list[Verified]":
        journals = await matching(client, selection)
        # Slow to import, and no other command needs them.
        from gazette_platform.cli.fragment_bar import FragmentBar  # noqa: PLC0415
        from gazette_platform.cli.verifying import Verifier, failed  # noqa: PLC0415

        results = []
        with FragmentBar("verifying", is_shown=sys.stderr.isatty()) as bar:
            verifier = Verifier(
                client,
                file_root=file_root,
                sample=sample,
                rng=random.Random(),  # noqa: S311  not for secrets
                on_planned=bar.add,
                on_read=bar.advance,
            )
            for journal in journals:
                try:
                    result = await verifier.verify(journal)
                except GazetteError as err:
                    result = failed(journal.name, err)
                if is_json:
                    _print_lines(result)
                results.append(result)
        return results

    results = connected(ctx, work, file_root=file_root)
    if not is_json and any(result.findings for result in results):
        print_table(
            ["Journal", "Finding", "Begin", "End", "Object", "Detail"],
            [_row(result.journal, each) for result in results for each in result.findings],
        )
    faults = sum(result.faults for result in results)
    note(
        f"{len(results)} journals, {sum(result.fragments for result in results)} fragments, "
        f"{sum(result.read for result in results)} of them read and whole: {faults} faults"
    )
    if faults:
        raise DataError(
            f"{faults} faults were found (restore what is damaged or missing from a copy of the store; "
            "docs/guides/operating.md says what each means)"
        )


def _row(journal: str, finding: "Finding") -> list[str]:
    return [
        journal,
        finding.kind.value,
        str(finding.begin),
        str(finding.end),
        finding.path,
        finding.detail,
    ]


def _print_lines(result: "Verified") -> None:
    for each in result.findings:
        print_json(
            {
                "journal": result.journal,
                "finding": each.kind.value,
                "fault": each.kind.is_fault,
                "begin": each.begin,
                "end": each.end,
                "store": each.store,
                "path": each.path,
                "detail": each.detail,
            }
        )
    print_json(
        {
            "journal": result.journal,
            "finding": "summary",
            "begin": result.begin,
            "end": result.end,
            "fragments": result.fragments,
            "storedBytes": result.stored_bytes,
            "read": result.read,
            "faults": result.faults,
        }
    )
