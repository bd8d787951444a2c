"""Records of bike-share that are not rides."""

import pytest

from examples.bike_share.application import _ride_of
from gazette_platform.errors import ApplicationFailed
from gazette_platform.message import NO_UUID, Envelope


@pytest.mark.parametrize("record", [["x" * 10**6], ["9" * 10**5] * 16, []])
def test_invalid_ride_is_reported_in_short(record):
    with pytest.raises(
        ApplicationFailed, match="rides at 7: expected a UUID and the 15 columns"
    ) as caught:
        _ride_of(Envelope("rides", 7, 8, NO_UUID, record))
    assert len(str(caught.value)) < 1000
