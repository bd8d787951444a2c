from gazette_platform.client.route_cache import RouteCache, pick_endpoint
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import ProcessId, Route
from gazette_platform.serving.interface import Condition


def route(*zones, primary=0):
    members = tuple(ProcessId(zone, f"broker-{n}") for n, zone in enumerate(zones))
    return Route(members, primary, tuple(f"http://{m.zone}-{m.suffix}" for m in members))


def test_v10_primary_is_picked_for_appends():
    assert pick_endpoint(route("a", "b", primary=1), "a", primary=True) == "http://b-broker-1"
    assert pick_endpoint(route("a", "b", primary=-1), "a", primary=True) == ""


def test_v10_replica_of_the_zone_is_picked_for_reads():
    assert pick_endpoint(route("a", "b", "b"), "b", primary=False) == "http://b-broker-1"
    assert pick_endpoint(route("a", "b"), "c", primary=False) == "http://a-broker-0"


def test_members_without_endpoint_are_passed_over():
    members = (ProcessId("a", "gone"), ProcessId("b", "here"))
    assert pick_endpoint(Route(members, 0, ("", "http://b")), "a", primary=False) == "http://b"
    assert pick_endpoint(Route(members, 0, ()), "a", primary=False) == ""
    assert pick_endpoint(Route(members, 0, ("", "")), "a", primary=False) == ""


def conditions(**found):
    """By the member's number."""
    return lambda endpoint: found.get(f"n{endpoint[-1]}", Condition.UNKNOWN)


def pick(where, *, leaves_zone=False, **found):
    picked = pick_endpoint(
        where, "b", primary=False, condition=conditions(**found), leaves_zone=leaves_zone
    )
    return int(picked[-1])


def test_v10_replicas_that_failed_or_are_not_connected_come_later():
    where = route("a", "b", "b")
    assert pick(where) == 1
    assert pick(where, n2=Condition.READY) == 2
    assert pick(where, n1=Condition.FAILED) == 2
    assert pick(where, n0=Condition.READY, n1=Condition.READY, n2=Condition.READY) == 1


def test_v10_the_zone_is_not_left_for_a_failure():
    where = route("a", "b", "b")
    failed = {"n0": Condition.READY, "n1": Condition.FAILED, "n2": Condition.FAILED}
    assert pick(where, **failed) == 1
    assert pick(where, **failed, leaves_zone=True) == 0, "but brokers that forward do"


def test_rc1_least_recently_used_is_dropped():
    cache = RouteCache(2, 60, ManualClock())
    cache.update("one", route("a"))
    cache.update("two", route("a"))
    assert cache.get("one") is not None
    cache.update("three", route("a"))
    assert cache.get("two") is None
    assert cache.get("one") is not None
    assert len(cache) == 2


def test_rc1_entries_expire_by_their_last_update():
    clock = ManualClock()
    cache = RouteCache(2, 60, clock)
    cache.update("one", route("a"))
    clock.advance(59)
    assert cache.get("one") is not None
    clock.advance(1)
    assert cache.get("one") is None
    assert len(cache) == 0


def test_rc1_empty_routes_invalidate():
    cache = RouteCache(2, 60, ManualClock())
    for forget in (lambda: cache.update("one", None), lambda: cache.update("one", Route())):
        cache.update("one", route("a"))
        forget()
        assert cache.get("one") is None
    cache.update("one", route("a"))
    cache.invalidate("one")
    assert cache.get("one") is None


def test_size_zero_remembers_nothing():
    cache = RouteCache(0, 60, ManualClock())
    cache.update("one", route("a"))
    assert cache.get("one") is None
