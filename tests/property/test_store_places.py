"""Laws of places: whatever a URL says, a journal's objects lie in its folder, and folders that overlap are seen."""

from __future__ import annotations

import posixpath
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.store_guard import StoreGuard, folders_of, journal_place, store_place
from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import FragmentSpec, JournalSpec, StoreUrl, parse_store_url
from gazette_platform.stores.interface import KeyRule

_LETTERS = "ab/."
names = st.lists(st.sampled_from(["a", "b", "ab", "..a"]), min_size=1, max_size=4).map("/".join)
texts = st.text(_LETTERS, max_size=5)
prefixes = st.lists(st.sampled_from(["a", "b", "", "."]), max_size=3).map(
    lambda p: "/".join([*p, ""])
)


@given(prefixes, texts, texts, names, st.text(_LETTERS + "-=", max_size=8))
def test_all_objects_of_a_journal_lie_in_its_folder(prefix, find, replace, journal, rest):
    rule = KeyRule(prefix=prefix.lstrip("/"), find=find, replace=replace)
    try:
        folder = rule.directory(journal)
        key = rule.key(f"{journal}/{rest}")
    except StoreError:
        return
    assert key.startswith(folder)
    clean = posixpath.normpath(f"/{folder}")
    assert f"{posixpath.normpath('/' + key)}/".startswith(clean)


@given(prefixes, texts, texts, names, st.sampled_from(["", "a", "b=", "a/b"]), texts)
def test_prefix_of_a_postfix_is_not_a_risk(prefix, find, replace, journal, literal, rest):
    """A folder that is allowed since postfixes begin so holds all that have such a one."""
    rule = KeyRule(prefix=prefix.lstrip("/"), find=find, replace=replace)
    postfix = f"{literal}{{{{.Begin}}}}" if literal else ""
    path = f"{journal}/{literal}{rest}/0a-b" if literal else f"{journal}/0a-b"
    if posixpath.normpath(path) != path:
        return  # of no valid postfix
    try:
        folder = rule.directory(journal, postfix=postfix)
        keys = [rule.key(path), rule.key(f"{journal}/0a-b")]
    except StoreError:
        return
    assert all(key.startswith(folder) for key in keys)


@st.composite
def stores(draw):
    text = f"file:///{draw(prefixes)}?find={draw(texts)}&replace={draw(texts)}"
    try:
        return parse_store_url(text).text
    except ValidationError:
        return "file:///"


@given(st.dictionaries(names, stores(), max_size=8))
def test_of_overlapping_journals_the_oldest_alone_is_served(journals):
    """Compared with what paths on a disk would say, folder by folder."""
    items = {
        name: SimpleNamespace(
            spec=JournalSpec(name, 1, fragment=FragmentSpec(stores=(url,))), create_revision=age
        )
        for age, (name, url) in enumerate(journals.items())
    }
    state = SimpleNamespace(items=items, changes=SimpleNamespace(items=set(items)))
    guard = StoreGuard(state)
    guard.on_change()
    folders = {}
    for name, url in journals.items():
        try:
            folders[name] = posixpath.normpath(
                journal_place(url, name, postfix="").removeprefix("file://")
            )
        except ValidationError:
            continue
    for name, item in items.items():
        clashes = any(
            f"{folders[name].rstrip('/')}/".startswith(f"{folders[other].rstrip('/')}/")
            or f"{folders[other].rstrip('/')}/".startswith(f"{folders[name].rstrip('/')}/")
            for other in folders
            if name in folders and items[other].create_revision < item.create_revision
        )
        try:
            guard.check(item.spec)
        except StoreError:
            assert clashes or name not in folders
        else:
            assert not clashes
            assert name in folders
    # What is forgotten is not an obstacle.
    state.items = {}
    guard.on_change()
    assert guard._places._entries == []
    assert guard._naming == {}


@given(prefixes, names)
def test_folders_lead_from_the_root_to_a_place(prefix, journal):
    place = journal_place(f"file:///{prefix}", journal)
    folders = folders_of(place)
    assert folders[0] == "file:///"
    assert all(
        inner.startswith(outer) for outer, inner in zip(folders, [*folders[1:], place], strict=True)
    )
    assert place.startswith(store_place(f"file:///{prefix}"))
    assert isinstance(parse_store_url(f"file:///{prefix}"), StoreUrl)


def test_an_older_journal_that_takes_a_folder_later_has_it():
    """A journal that was served is looked at again when another's stores change."""
    young = JournalSpec(
        "young", 1, fragment=FragmentSpec(stores=("file:///?find=young&replace=x",))
    )
    items = {
        "old": SimpleNamespace(spec=JournalSpec("old", 1), create_revision=1),
        "young": SimpleNamespace(spec=young, create_revision=2),
    }
    state = SimpleNamespace(items=items, changes=SimpleNamespace(items={"old", "young"}))
    guard = StoreGuard(state)
    guard.on_change()
    guard.check(young)
    old = JournalSpec("old", 1, fragment=FragmentSpec(stores=("file:///?find=old&replace=x",)))
    items["old"] = SimpleNamespace(spec=old, create_revision=1)
    state.changes.items = {"old"}
    guard.on_change()
    guard.check(old)
    with pytest.raises(StoreError, match="overlaps the folder of an older journal"):
        guard.check(young)


def test_an_unforeseen_error_costs_one_journal_its_stores_and_no_other(monkeypatch):
    specs = [JournalSpec(name, 1, fragment=FragmentSpec(stores=("file:///",))) for name in "abc"]
    items = {
        spec.name: SimpleNamespace(spec=spec, create_revision=age) for age, spec in enumerate(specs)
    }
    state = SimpleNamespace(items=items, changes=SimpleNamespace(items=list(items)))
    faults = Faults()
    guard = StoreGuard(state, faults=faults)
    places_of = guard._places_of

    def fails_for_a(spec):
        if spec.name == "a":
            raise KeyError("unforeseen")
        return places_of(spec)

    monkeypatch.setattr(guard, "_places_of", fails_for_a)
    guard.on_change()
    assert faults.reported == 1
    with pytest.raises(StoreError, match="stores of a are not used"):
        guard.check(specs[0])
    for spec in specs[1:]:
        guard.check(spec)
        assert guard._known[spec.name].places == (f"file:///{spec.name}/",)
