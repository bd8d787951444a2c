"""The layout that journals' fragments will have, derived from their specs before any is persisted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.layout import Layout
from gazette_platform.protocol import Fragment, LabelSet
from gazette_platform.protocol.path_postfix import PathPostfixTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from gazette_platform.lake.layout import StoreRoots
    from gazette_platform.protocol import JournalSpec

__all__ = ["expected_directory", "expected_layout", "expected_location"]


def expected_directory(journal: JournalSpec, at: datetime) -> str:
    """Where a fragment goes that is first appended to at `at`, below the prefix of its store.

    Raises: LakeError: the postfix template needs what only brokers know, such as registers.
    """
    text = journal.fragment.path_postfix_template
    if not text:
        return journal.name
    fragment = Fragment(journal.name, 0, 0, codec=journal.fragment.codec)
    try:
        postfix = PathPostfixTemplate(text).evaluate(fragment, at, LabelSet(), journal)
    except ValidationError as err:
        raise LakeError(
            f"{journal.name}: its path postfix is not known before a fragment is persisted ({err})"
        ) from err
    return f"{journal.name}/{postfix}" if postfix else journal.name


def expected_layout(journals: Sequence[JournalSpec], at: datetime) -> Layout:
    """The layout that fragments of all `journals` will share.

    Raises: LakeError: they will not share one; says in what they differ. Or the layout is not known.
    """
    Layout.of_journals(journal.name for journal in journals)
    return Layout.of_journals(expected_directory(journal, at) for journal in journals)


def expected_location(journals: Sequence[JournalSpec], layout: Layout, roots: StoreRoots) -> str:
    """The folder that will hold the table's Hive partitions, as engines know it.

    Raises: LakeError: no store, or one that no root maps.
    """
    stores = [store for journal in journals for store in journal.fragment.stores]
    if not stores:
        raise LakeError(
            f"{journals[0].name} has no fragment store, so no engine can read it: give it one "
            "under `fragment.stores` of the journal's spec"
        )
    return roots.location(stores[0], layout.base)
