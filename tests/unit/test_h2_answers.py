"""What headers and trailers of answers say, however odd."""

from __future__ import annotations

import pytest

from gazette_platform.serving.h2.client_machine import read_answer
from gazette_platform.serving.interface import Code

GRPC = (b"content-type", b"application/grpc")


@pytest.mark.parametrize("status", [b"", b"abc", b"-1", b"2" * 5000, "²".encode()])
def test_odd_http_status_is_an_error_of_its_call(status):
    answer = read_answer([(b":status", status), GRPC], is_first=True, is_last=False)
    assert answer.status == (Code.UNKNOWN, "the answer is none of gRPC: HTTP status 0")


@pytest.mark.parametrize("number", [b"", b"abc", b"-1", b"9" * 5000, "²".encode()])
def test_odd_grpc_status_is_an_error_of_its_call(number):
    answer = read_answer([(b"grpc-status", number)], is_first=False, is_last=True)
    assert answer.status == (Code.UNKNOWN, "the call ended without a status")
