"""Groups of appends to one journal, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from gazette_platform.broker.append.events import AppendRequest
from gazette_platform.protocol import AppendSuspend, JournalFlag, LabelSelector, LabelSet

# Appends of the same request share the object, as those of real clients do.
REQUESTS = [
    AppendRequest("a/journal", **options)
    for options in (
        {},
        {"check_registers": LabelSelector.parse("reg=1")},
        {"check_registers": LabelSelector.parse("reg=2")},
        {"union_registers": LabelSet.of(reg="1")},
        {"union_registers": LabelSet.of(reg="2")},
        {"subtract_registers": LabelSet.of(reg="1")},
        {"offset": 3},
        {"offset": 6},
        {"closes_fragment": True},
        {"suspend": AppendSuspend.SUSPEND_NO_RESUME},
        {"suspend": AppendSuspend.SUSPEND_KEEP},
    )
]
APPENDS = st.tuples(st.sampled_from(REQUESTS) | st.just(REQUESTS[0]), st.integers(0, 4))
# The appends of a group are under way at the same time.
GROUPS = st.lists(st.lists(APPENDS, min_size=1, max_size=12), min_size=1, max_size=4)
FLAGS = st.sampled_from([JournalFlag.O_RDWR, JournalFlag.O_RDWR, JournalFlag.O_RDONLY])
