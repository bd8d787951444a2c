"""Keeps the fragments of journals apart: which stores a spec may name, and which are served.

A broker learns what a journal holds by listing its store. So whoever can point a journal at the folder
of another one can read that one's content, and write into it. Apply refuses such specs. Specs can also
get into etcd by other means, so brokers check again before they use a store.
"""

from __future__ import annotations

import bisect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import LabelSet, StoreUrl, parse_store_url
from gazette_platform.protocol.auth import Forbidden
from gazette_platform.stores.interface import KeyRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gazette_platform.keyspace import BrokerState, Item
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.protocol.auth import Claims

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """A journal's stores and the folders it has there; no folders if the stores cannot be used anyway."""

    stores: tuple[str, ...]
    postfix: str
    create_revision: int
    places: tuple[str, ...]
    problem: str

    def is_of(self, item: Item) -> bool:
        """Whether the journal's spec still says the same."""
        fragment = item.spec.fragment
        return (self.stores, self.postfix, self.create_revision) == (
            fragment.stores,
            fragment.path_postfix_template,
            item.create_revision,
        )


class _Places:
    """Places of journals, sorted, so that those above and below one are found without a full search."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, str]] = []

    def add(self, place: str, journal: str) -> None:
        bisect.insort(self._entries, (place, journal))

    def remove(self, place: str, journal: str) -> None:
        index = bisect.bisect_left(self._entries, (place, journal))
        if self._entries[index : index + 1] == [(place, journal)]:
            del self._entries[index]

    def overlapping(self, place: str) -> Iterator[str]:
        """Journals whose place is this one, or below or above it."""
        for folder in folders_of(place):
            for found, journal in self._from(folder):
                if found != folder:
                    break
                yield journal
        for found, journal in self._from(place):
            if not found.startswith(place):
                break
            yield journal

    def _from(self, place: str) -> Iterator[tuple[str, str]]:
        for index in range(bisect.bisect_left(self._entries, (place, "")), len(self._entries)):
            yield self._entries[index]


@final
class StoreGuard:
    """The stores of all journals, as of the key space.

    Args:
        state: of the key space.
        allowed: URLs; a store must be one of them or lie below one; empty: any store.
        file_only: whether every URL means the file root.
        faults: counts unforeseen errors; each concerns one journal.

    Raises: ValidationError: an URL of `allowed` is not one of a store.
    """

    def __init__(
        self,
        state: BrokerState,
        *,
        allowed: Collection[str] = (),
        file_only: bool = False,
        faults: Faults | None = None,
    ) -> None:
        self._state = state
        self._faults = faults or Faults()
        self._file_only = file_only
        self._allowed = tuple(store_place(url) for url in allowed)
        self._known: dict[str, _Known] = {}
        self._places = _Places()
        self._naming: dict[str, set[str]] = {}
        # What is wrong with journals that overlap others, as far as asked since the last change.
        self._problems: dict[str, str] = {}

    def on_change(self) -> None:
        """The key space has changed."""
        for journal in self._state.changes.items:
            item, known = self._state.items.get(journal), self._known.get(journal)
            if known is not None and (item is None or not known.is_of(item)):
                self._forget(journal, known)
                known = None
            if known is None and item is not None and item.spec.fragment.stores:
                self._learn(item.spec, item.create_revision)

    def _learn(self, spec: JournalSpec, create_revision: int) -> None:
        journal, stores = spec.name, spec.fragment.stores
        problem = ""
        places: tuple[str, ...] = ()
        try:
            places = self._places_of(spec)
        except ValidationError as err:
            problem = str(err)
        except Exception as err:  # noqa: BLE001  reported; other journals are looked at all the same
            self._faults.report("journal", f"{journal}: its stores are not used", err)
            problem = "where they lie is not known, by an error in the log"
        postfix = spec.fragment.path_postfix_template
        self._known[journal] = _Known(stores, postfix, create_revision, places, problem)
        for place in places:
            self._places.add(place, journal)
        for url in stores:
            self._naming.setdefault(url, set()).add(journal)
        self._problems.clear()

    def _forget(self, journal: str, known: _Known) -> None:
        del self._known[journal]
        for place in known.places:
            self._places.remove(place, journal)
        for url in known.stores:
            naming = self._naming.get(url, set())
            naming.discard(journal)
            if not naming:
                self._naming.pop(url, None)
        self._problems.clear()

    # ------------------------------------------------------------------------------- at take-on
    def check(self, spec: JournalSpec) -> None:
        """Refuse the stores of a journal if they would mix its fragments with an older journal's.

        Raises: StoreError.
        """
        problem = self._problems.get(spec.name)
        if problem is None:
            problem = self._problems[spec.name] = self._problem(spec.name)
        if problem:
            raise StoreError(f"stores of {spec.name} are not used: {problem}; mend its spec")

    def _problem(self, journal: str) -> str:
        known = self._known.get(journal)
        if known is None or known.problem:
            return "" if known is None else known.problem
        own = (known.create_revision, journal)
        for place in known.places:
            for other in self._places.overlapping(place):
                if (self._known[other].create_revision, other) < own:
                    # The caller may not know of the other journal, so only the log names it.
                    _log.error("%s would be stored at %s, as is %s", journal, place, other)
                    return f"{place} overlaps the folder of an older journal (the log names it)"
        return ""

    # --------------------------------------------------------------------------------- at Apply
    async def check_apply(
        self, specs: Collection[JournalSpec], deleted: Collection[str], claims: Claims
    ) -> None:
        """Refuse specs that would mix their fragments, or names, with those of other journals.

        A spec that leaves the journal's stores as they are passes: it changes something else.

        Args:
            specs: all that a request sets, within `claims`.
            deleted: names that it deletes.
            claims: of the caller.

        Raises: ValidationError; Forbidden: a store rewrites a name to one beyond the claims.
        Cancellation: safe.
        """
        leaving = {spec.name for spec in specs}.union(deleted)
        fresh, turns = _Places(), Turns()
        for spec in specs:
            await turns.take()
            known = self._state.items.get(spec.name)
            stores = spec.fragment.stores
            places = [f"name://{spec.name}/"]
            if known is None or known.spec.fragment.stores != stores:
                places += self._places_of(spec)
                self._check_rewriting(spec, claims)
                for place in places[1:]:
                    self._refuse_overlap(spec.name, place, self._places, leaving, claims)
            elif known.spec.fragment.path_postfix_template != spec.fragment.path_postfix_template:
                for url in stores:
                    self._place_of(url, spec)
            if known is None:
                self._refuse_nested(spec.name, leaving, claims)
            for place in places:
                self._refuse_overlap(spec.name, place, fresh, (spec.name,), claims)
                fresh.add(place, spec.name)

    def _places_of(self, spec: JournalSpec) -> tuple[str, ...]:
        places = []
        for url in dict.fromkeys(spec.fragment.stores):
            self.check_allowed(url)
            places.append(self._place_of(url, spec))
        return tuple(places)

    def _place_of(self, url: str, spec: JournalSpec) -> str:
        postfix = spec.fragment.path_postfix_template
        return journal_place(url, spec.name, postfix=postfix, file_only=self._file_only)

    def check_allowed(self, url: str) -> None:
        """Refuse a store that is not in the operator's list.

        Raises: ValidationError.
        """
        if self._allowed and not store_place(url).startswith(self._allowed):
            raise ValidationError(
                f"fragment store {url} is not among those that this cluster allows "
                f"(--broker.stores-allowed: {', '.join(self._allowed)})"
            )

    def _check_rewriting(self, spec: JournalSpec, claims: Claims) -> None:
        for url in spec.fragment.stores:
            postfix = spec.fragment.path_postfix_template
            name = rewritten_name(url, spec.name, postfix=postfix, file_only=self._file_only)
            if name != spec.name and not claims.match(spec.labels.with_value("name", name)):
                raise Forbidden(f"not authorized to {name}, as which {url} stores {spec.name}")

    def _refuse_overlap(
        self, journal: str, place: str, among: _Places, leaving: Collection[str], claims: Claims
    ) -> None:
        for other in among.overlapping(place):
            if other in leaving:
                continue
            if place.startswith("name://"):
                raise _nested(*(f"journal {n}" for n in sorted((journal, other), key=len)))
            raise ValidationError(
                f"fragments of {journal} would lie at {place}, and mix with those of "
                f"{self._shown(other, claims)}; give them another store or name"
            )

    def _refuse_nested(self, journal: str, leaving: Collection[str], claims: Claims) -> None:
        """Refuse a journal whose name is a folder of another's, or lies in such a folder."""
        items, names = self._state.items, self._state.journals
        slash = journal.find("/")
        while slash != -1:
            outer = journal[:slash]
            if outer in items and outer not in leaving:
                raise _nested(self._shown(outer, claims), f"journal {journal}")
            slash = journal.find("/", slash + 1)
        for index in range(bisect.bisect_left(names, f"{journal}/"), len(names)):
            inner = names[index]
            if not inner.startswith(f"{journal}/"):
                return
            if inner not in leaving:
                raise _nested(f"journal {journal}", self._shown(inner, claims))

    def _shown(self, journal: str, claims: Claims) -> str:
        """A journal's name, if the caller may know it."""
        item = self._state.items.get(journal)
        labels = item.spec.label_set_with_name() if item else LabelSet.of(name=journal)
        return f"journal {journal}" if claims.match(labels) else "another journal"

    # ------------------------------------------------------------------------------ of a store
    def journals_with(self, url: str, claims: Claims) -> Iterator[str]:
        """Journals within `claims` whose specs name this very store."""
        for journal in self._naming.get(url, ()):
            if claims.match(self._state.items[journal].spec.label_set_with_name()):
                yield journal


def _nested(shorter: str, longer: str) -> ValidationError:
    return ValidationError(
        f"{shorter} would be a directory of {longer}, whose fragments it would list as its own; "
        "name them so that neither is a prefix of the other at a /"
    )


# Bytes of one name, and of a path, which leaves room for the file root, a postfix and a fragment's name.
_SEGMENT_BYTES_MAX: Final = 255
_FOLDER_BYTES_MAX: Final = 2560

# Folders that brokers and the lake keep for themselves beside journals.
_RESERVED: Final = (".test", ".covered", ".gazette", ".partial")


def store_place(url: str, *, file_only: bool = False) -> str:
    """The folder of a store itself.

    >>> store_place("file:////a//b/"), store_place("s3://bucket/?region=x")
    ('file:///a/b/', 's3://bucket/')

    Args:
        file_only: whether brokers take every URL for the file root (`--broker.file-only`).

    Raises: ValidationError: no URL of a store.
    """
    parsed = _parse(url, file_only=file_only)
    return _root(parsed) + _normal(parsed.prefix)


def journal_place(
    url: str, journal: str, *, postfix: str | None = None, file_only: bool = False
) -> str:
    """The folder that holds all fragments of a journal in a store, and nothing else.

    >>> journal_place("file:///data/?find=mine/&replace=ours/", "mine/one")
    'file:///data/ours/one/'

    Args:
        postfix: as `KeyRule.directory` has it.

    Raises: ValidationError: no URL of a store, or none that keeps the journal in one folder.
    """
    parsed = _parse(url, file_only=file_only)
    try:
        key = _rule(parsed).directory(journal, postfix=postfix)
    except StoreError as err:
        raise ValidationError(f"fragment store {url}: {err}") from None
    place = _normal(key)
    if any(part.startswith(_RESERVED) for part in place.split("/")):
        raise ValidationError(f"fragment store {url} puts {journal} into a folder of brokers' own")
    if parsed.scheme == "file":
        # Else appends would be taken, and never persisted.
        longest = max(len(part.encode()) for part in place.split("/"))
        if longest > _SEGMENT_BYTES_MAX or len(place.encode()) > _FOLDER_BYTES_MAX:
            raise ValidationError(
                f"fragment store {url} puts {journal} where file systems do not (names have "
                f"{_SEGMENT_BYTES_MAX} bytes at most, folders of journals {_FOLDER_BYTES_MAX})"
            )
    return _root(parsed) + place


def rewritten_name(
    url: str, journal: str, *, postfix: str | None = None, file_only: bool = False
) -> str:
    """The name under which a store keeps a journal: its own, unless `find` rewrites it.

    Raises: ValidationError: as `journal_place`.
    """
    parsed = _parse(url, file_only=file_only)
    try:
        rule = KeyRule.of("", _arguments(parsed))
        return _normal(rule.directory(journal, postfix=postfix)).removesuffix("/")
    except StoreError as err:
        raise ValidationError(f"fragment store {url}: {err}") from None


def folders_of(place: str) -> list[str]:
    """The folders above a place, outermost first.

    >>> folders_of("file:///a/b/")
    ['file:///', 'file:///a/']
    """
    end = place.index("/", place.index("://") + len("://")) + 1
    folders = []
    while end < len(place):
        folders.append(place[:end])
        end = place.index("/", end) + 1
    return folders


def _parse(url: str, *, file_only: bool) -> StoreUrl:
    parsed = parse_store_url(url)
    if file_only:
        return StoreUrl(scheme="file", host="", path="/", args={}, text=url)
    return parsed


def _root(url: StoreUrl) -> str:
    # Another endpoint is another service, whose bucket of the same name is a different one.
    endpoint = _arguments(url).get("endpoint", "").replace("/", "|")
    return f"{url.scheme}://{url.host}{endpoint and '@'}{endpoint}/"


def _rule(url: StoreUrl) -> KeyRule:
    return KeyRule.of(url.prefix.lstrip("/"), _arguments(url))


def _arguments(url: StoreUrl) -> dict[str, str]:
    return {name.lower(): value for name, value in url.args.items()}


def _normal(key: str) -> str:
    """A key as a path without empty and ``.`` segments: "" or ends in a slash."""
    return "".join(f"{part}/" for part in key.split("/") if part not in ("", "."))
