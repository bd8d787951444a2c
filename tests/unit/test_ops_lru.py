"""A bounded dictionary forgets what was used least recently."""

from gazette_platform.ops.lru import Lru


def test_it_forgets_what_was_used_least_recently():
    lru = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    assert lru.get("a") == 1
    lru.put("c", 3)
    assert [lru.get(key) for key in "abc"] == [1, None, 3]


def test_putting_again_is_a_use():
    lru = Lru(2)
    for key in "aba":
        lru.put(key, key)
    lru.put("c", "c")
    assert [lru.get(key) for key in "abc"] == ["a", None, "c"]


def test_asking_for_what_is_not_there_forgets_nothing():
    lru = Lru(1)
    lru.put("a", 1)
    assert lru.get("b") is None
    assert lru.get("a") == 1


def test_dropping_and_the_size_none():
    lru = Lru(2)
    lru.put("a", 1)
    lru.drop("a")
    lru.drop("never")
    assert (lru.get("a"), len(lru)) == (None, 0)
    none = Lru(0)
    none.put("a", 1)
    assert (none.get("a"), len(none)) == (None, 0)
