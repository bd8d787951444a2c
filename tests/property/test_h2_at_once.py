"""Calls that are served without a task end as those with one, however they come, and however they are answered."""

from __future__ import annotations

import asyncio

from http2_bench import START, frames_of, give, headers, message
from hypothesis import given, settings as hypothesis_settings, strategies as st

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.serving.h2.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    LIMITS,
    Setting,
    frame,
    reset,
    settings,
    window_update,
)
from gazette_platform.serving.h2.handling import method_of
from gazette_platform.serving.h2.server import Connection, Shared
from gazette_platform.serving.interface import Code, Kind, Rpc, RpcFailed
from gazette_platform.testing.waiting import eventually, turns

UPLOAD = "/test.Echo/Upload"
KIND = Kind.CLIENT_STREAM


class Transport:
    """Takes what a server writes."""

    def __init__(self):
        self.written = b""
        self.is_over = False

    def write(self, raw):
        self.written += raw

    def set_write_buffer_limits(self, high):
        pass

    def get_extra_info(self, name):
        return ("127.0.0.1", 1) if name == "peername" else None

    def is_closing(self):
        return self.is_over

    def close(self):
        self.is_over = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Uploads:
    """A handler whose calls say how many turns of the loop they take, how they end, and their response's size."""

    def __init__(self):
        self.begun = []
        self.at_once = 0
        self.left = 0

    @staticmethod
    def end(first, count):
        _, how, size = first.split()
        if how == b"fail":
            raise RpcFailed(Code.UNAVAILABLE, "why")
        if how == b"crash":
            raise ValueError("unexpected")
        return b"%d of %s" % (count, first) + b"." * int(size)

    async def upload(self, first, content, metadata):
        self.begun.append(first)
        count = 1
        while await content.next() is not None:
            count += 1
        await turns(int(first.split()[0]))
        return self.end(first, count)

    def begin(self, first, rest, metadata, caller):
        left, how, _ = first.split()
        if how == b"decline":
            return None
        self.begun.append(first)
        self.at_once += 1
        if how == b"crash":
            raise ValueError("unexpected")
        state = {"left": int(left), "handle": None}
        loop = asyncio.get_running_loop()

        def step():
            if state["left"]:
                state["left"] -= 1
                state["handle"] = loop.call_soon(step)
            elif how == b"go":

                async def go_on():
                    await turns(1)
                    return self.end(first, len(rest) + 1)

                caller.go_on(go_on)
            else:
                try:
                    raw = self.end(first, len(rest) + 1)
                except RpcFailed as err:
                    caller.refuse(err)
                else:
                    caller.reply(raw)

        def leave():
            self.left += 1
            state["handle"].cancel()

        state["handle"] = loop.call_soon(step)
        return leave


async def play(steps, *, window, is_at_once):
    """Returns: what each stream got, how calls were counted, and how many were served without a task."""
    uploads, metrics = Uploads(), BrokerMetrics()
    rpc = Rpc(
        "test.Echo", "Upload", KIND, uploads.upload, at_once=uploads.begin if is_at_once else None
    )
    method = method_of(rpc, metrics.calls.of(KIND.value, rpc.service, rpc.name))
    shared = Shared({UPLOAD.encode(): method}, LIMITS, 1 << 20)
    shared.loop = asyncio.get_running_loop()
    shared.deadlines.start(shared.loop)
    connection, transport = Connection(shared), Transport()
    connection.connection_made(transport)
    give(connection, START + settings({Setting.INITIAL_WINDOW_SIZE: window}))
    for step in steps:
        if isinstance(step, bytes):
            give(connection, step)
        elif callable(step):
            step(connection)
        else:
            await turns(step)
    for call in tuple(connection.streams.values()):
        if not call.is_ended:  # a client that leaves
            give(connection, reset(call.id, 8))
    for call in tuple(connection.streams.values()):
        give(connection, window_update(call.id, 1 << 20))
    await eventually(lambda: not shared.tasks and not connection.streams)
    await turns(2)
    assert (connection.unstarted, connection.unread, shared.deadlines._steps) == (0, 0, {})
    connection.connection_lost(None)
    got = {}
    for each in frames_of(transport.written):
        if each.stream and each.kind in {DATA, HEADERS}:
            kinds = got.setdefault(each.stream, {DATA: b"", HEADERS: b""})
            kinds[each.kind] += each.payload
    return got, counted(metrics), uploads


def counted(metrics):
    """Counts of calls, without their times."""
    return {
        (sample.name, sample.labels.get("grpc_code")): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("grpc_server")
        and "_seconds" not in sample.name
        and not sample.name.endswith("_created")
    }


requests = st.builds(
    b"%d %s %d".__mod__,
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([b"ok", b"ok", b"ok", b"fail", b"go", b"decline", b"crash"]),
        st.sampled_from([0, 0, 30, 5000]),
    ),
)
bodies = st.lists(st.binary(max_size=20), max_size=3)
calls = st.lists(
    st.tuples(requests, bodies, st.sampled_from(["whole", "whole", "whole", "open", "reset"])),
    min_size=1,
    max_size=6,
)


@st.composite
def exchanges(draw):
    """What a client sends, in pieces that are cut anywhere, with turns of the loop between them."""
    raw = b""
    for number, (first, rest, end) in enumerate(draw(calls)):
        stream = 2 * number + 1
        raw += headers(stream, path=UPLOAD.encode())
        for content in (first, *rest):
            raw += frame(DATA, 0, stream, message(content))
        if end == "whole":
            raw += frame(DATA, END_STREAM, stream)
        if end == "reset":
            raw += reset(stream, 8)
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    pieces = [raw[at:to] for at, to in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    steps = []
    for piece in pieces:
        steps += [piece, draw(st.integers(0, 3))]
    return [step for step in steps if step]


@hypothesis_settings(deadline=None)
@given(exchanges(), st.sampled_from([65_535, 65_535, 10, 2000]))
def test_calls_without_a_task_end_as_those_with_one(exchange, window):
    steps = exchange
    with_task, counts, tasks = asyncio.run(play(steps, window=window, is_at_once=False))
    without, other_counts, uploads = asyncio.run(play(steps, window=window, is_at_once=True))
    assert without == with_task
    assert other_counts == counts
    assert uploads.begun == tasks.begun


def test_whole_uploads_need_no_task():
    raw = b"".join(
        headers(stream, path=UPLOAD.encode())
        + frame(DATA, 0, stream, message(b"0 ok 9"))
        + frame(DATA, END_STREAM, stream, message(b"x"))
        for stream in (1, 3, 5)
    )
    got, counts, uploads = asyncio.run(play([raw, 1], window=65_535, is_at_once=True))
    assert uploads.at_once == 3
    assert all(b"2 of 0 ok 9" in each[DATA] for each in got.values())
    assert counts["grpc_server_handled_total", "OK"] == 3


def upload(stream, first, *fields):
    return (
        headers(stream, *fields, path=UPLOAD.encode())
        + frame(DATA, 0, stream, message(first))
        + frame(DATA, END_STREAM, stream)
    )


def test_call_without_a_task_is_dropped_when_its_client_leaves():
    leaves = [upload(1, b"9 ok 0"), 1, lambda connection: connection.connection_lost(None)]
    _, counts, uploads = asyncio.run(play(leaves, window=65_535, is_at_once=True))
    assert (uploads.at_once, uploads.left) == (1, 1)
    assert counts["grpc_server_handled_total", "Canceled"] == 1


def test_call_without_a_task_ends_at_its_deadline():
    late = upload(1, b"1000000 ok 0", (b"grpc-timeout", b"1m"))
    got, counts, uploads = asyncio.run(play([late], window=65_535, is_at_once=True))
    assert (uploads.at_once, uploads.left) == (1, 1)
    assert b"grpc-status\x014" in got[1][HEADERS]
    assert counts["grpc_server_handled_total", "DeadlineExceeded"] == 1


def test_call_without_a_task_does_not_overtake_one_with_a_task():
    steps = [upload(1, b"0 decline 0") + upload(3, b"0 ok 0")]
    _, _, uploads = asyncio.run(play(steps, window=65_535, is_at_once=True))
    assert uploads.begun == [b"0 decline 0", b"0 ok 0"]
