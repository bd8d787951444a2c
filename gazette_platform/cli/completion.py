"""Names of journals and tables for a shell that completes a command line."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gazette_platform.errors import GazetteError
from gazette_platform.ops import platforms
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from gazette_platform.lake import TableSpec

__all__ = [
    "complete_all_tables",
    "complete_names",
    "complete_tables",
    "complete_typed_tables",
    "offers",
]

# Whoever pressed the key waits.
_ANSWERED_S = 2.0


def offers(names: Iterable[str], incomplete: str) -> list[str]:
    """What may follow: journals, and directories of several of them, as shells offer files.

    >>> offers(["a/one", "a/two/x", "a/two/y", "b/c/d"], "a/")
    ['a/one', 'a/two/']
    >>> offers(["b/c/d"], "")
    ['b/c/d']
    """
    below: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.startswith(incomplete):
            head, slash, _ = name[len(incomplete) :].partition("/")
            below.setdefault(incomplete + head + slash, []).append(name)
    # A directory of one journal is a detour.
    return [found[0] if len(found) == 1 else offer for offer, found in below.items()]


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of journals that begin so, by asking the broker of the command line; else none."""
    from gazette_platform.client import AsyncClient, ClientConfig  # noqa: PLC0415  completion only

    options = ctx.parent.params if ctx.parent is not None else {}
    keys = ("cert_file", "cert_key_file", "trusted_ca_file", "auth_keys", "auth_token", "zone")
    directory, slash, _ = incomplete.rpartition("/")
    labels = LabelSet().with_added("name", directory + slash, prefix=True)
    selector = LabelSelector(include=labels if slash else LabelSet())

    async def ask() -> list[str]:
        address = options["address"]
        if address == platforms.DEFAULT_BROKER:
            address = platforms.complete(os.environ, say=_hush).get("BROKER_ADDRESS") or address
        config = ClientConfig(
            address=address, **{key: options[key] for key in keys if options.get(key)}
        )
        async with asyncio.timeout(_ANSWERED_S), AsyncClient(config) as client:
            return [journal.name for journal in await client.list(selector)]

    try:
        return offers(asyncio.run(ask()), incomplete)
    except (GazetteError, OSError, TimeoutError, KeyError):
        return []  # an empty completion is not an error: the command itself reports the fault


def complete_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of raw tables that begin so, of the folder of specs of the command line; else none."""
    return [name for name in _specs(ctx) if name.startswith(incomplete)]


def complete_all_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of raw and typed tables that begin so; see `complete_tables`."""
    return sorted({*complete_tables(ctx, incomplete), *complete_typed_tables(ctx, incomplete)})


def complete_typed_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of typed tables that begin so; see `complete_tables`."""
    names = (spec.typed.name for spec in _specs(ctx).values() if spec.typed is not None)
    return [name for name in names if name.startswith(incomplete)]


def _hush(_note: str) -> None:
    """A shell that completes a line has no place for notes."""


def _specs(ctx: typer.Context) -> "Mapping[str, TableSpec]":
    try:
        from gazette_platform.lake.settings import LakeSettings  # noqa: PLC0415  completion only
        from gazette_platform.lake.spec_folder import read_spec_folder  # noqa: PLC0415  as well

        environment = platforms.complete(os.environ, say=_hush)
        folder = ctx.params.get("tables") or LakeSettings.from_environment(environment).tables
        return read_spec_folder(Path(folder)).specs if folder else {}
    except (ImportError, GazetteError, OSError):
        return {}
