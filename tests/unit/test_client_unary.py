"""When a call is made again."""

import pytest

from gazette_platform.client.transport import Repeat, may_repeat
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    NotJournalBroker,
    TransportError,
)

PASSING = TransportError("the broker is not reachable")
LATE = CallUnanswered("the broker did not answer in time")


@pytest.mark.parametrize("repeat", Repeat)
@pytest.mark.parametrize(
    ("error", "may"),
    [
        (PASSING, True),
        (NotJournalBroker(journal="a/b"), True),
        (CallFailed("refused", code="PERMISSION_DENIED"), False),
        (DataError("malformed"), False),
    ],
)
def test_what_is_likely_to_pass_is_tried_again(error, may, repeat):
    assert may_repeat(error, repeat) is may


@pytest.mark.parametrize("repeat", Repeat)
def test_without_an_answer_only_what_changes_nothing_is_tried_again(repeat):
    assert may_repeat(LATE, repeat) is (repeat is Repeat.IF_UNANSWERED)
