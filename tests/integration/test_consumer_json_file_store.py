"""Files of JSON stores: their bytes, how they are recorded, and what cannot be read."""

import asyncio
import dataclasses

import msgspec
import pytest

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.recoverylog import FsmHints, Player, Recorder
from gazette_platform.consumer.store import JSONFileStore
from gazette_platform.errors import DataError, DependencyFailed, StoreError, ValidationError
from gazette_platform.message import AckIntent
from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.testing.shard_store_conformance import Owners, StoreKind, checkpoint_of
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

# As in a file that Gazette has written.
GOLDEN = (
    b'{"foo":111}\n'
    b'{"hello":"world"}\n'
    b'{"sources":{"foo":{"read_through":111,"producers":[{"id":"AQIDBAUG","state":{"last_ack":456,"begin":-1}}]}},'
    b'"ack_intents":{"baz":"aW50ZW50Cg=="}}\n'
)
CHECKPOINT = Checkpoint(
    SequencerCheckpoint(
        offsets={"foo": 111}, producers=(ProducerState("foo", b"\1\2\3\4\5\6", 456, -1),)
    ),
    (AckIntent("baz", b"intent\n"),),
)


@dataclasses.dataclass
class Count:
    times: int = 0
    names: set[str] = dataclasses.field(default_factory=set)


class Words(msgspec.Struct):
    counts: dict[int, Count] = {}


class OfState(StoreKind):
    """Stores with a state that a test gives."""

    def __init__(self, make):
        self.make = make

    async def open(self, shard, recorder):
        return self.make(recorder)

    async def put(self, store, key, value):
        raise NotImplementedError

    async def get(self, store, key):
        raise NotImplementedError


@pytest.fixture
async def owners_of(shared, names, tmp_path):
    """Owners of a new shard, by how their store is made."""
    made = []

    async def make(make_store):
        folder = tmp_path / f"{len(made)}"
        owners = Owners(OfState(make_store), shared.address, folder, prefix=names.prefix)
        made.append(owners)
        await owners.apply_journals()
        return owners

    yield make
    for owners in made:
        await owners.close()


@pytest.fixture
async def owner(owners_of):
    owners = await owners_of(lambda recorder: JSONFileStore(recorder, {"hello": "world"}))
    return await owners.next()


@pytest.fixture
async def played(owner, tmp_path):
    """Files as another one plays them from the log, by name."""

    async def play():
        log, directory = owner.recorder.log, tmp_path / "played"
        player = Player(owner.recorder._client, FsmHints(log), directory)
        player.finish_at_write_head()
        async with asyncio.timeout(patient(30)):
            await player.play()
        return {each.name: each.read_bytes() for each in directory.iterdir()}

    return play


async def test_file_is_that_of_gazette(owner, played):
    await owner.commit(CHECKPOINT)
    assert await played() == {"state.json": GOLDEN}
    owner.store.state["hello"] = "nobody"
    assert await owner.store.restore_checkpoint() == CHECKPOINT
    assert owner.store.state == {"hello": "world"}


async def test_file_of_no_sources(owner, played):
    await owner.commit(Checkpoint())
    assert (await played())["state.json"] == b'{}\n{"hello":"world"}\n{}\n'
    assert await owner.store.restore_checkpoint() == Checkpoint()


async def test_journals_are_in_order_and_escaped_as_gazette_does(owner, played):
    offsets = {"b/journal;a=<b>&c": 2, "a/journal": 0, "b/journal": 18446744073709551}
    await owner.commit(Checkpoint(SequencerCheckpoint(offsets=offsets)))
    lines = (await played())["state.json"].splitlines()
    name = rb"b/journal;a=\u003cb\u003e\u0026c"
    assert lines[0] == b'{"a/journal":0,"b/journal":18446744073709551,"%b":2}' % name
    assert lines[2] == (
        b'{"sources":{"a/journal":{},"b/journal":{"read_through":18446744073709551},'
        b'"%b":{"read_through":2}}}' % name
    )


async def test_state_is_escaped_as_gazette_does(owner, played):
    owner.store.state["<a&b>"] = "\u2028\u2029é"
    await owner.commit(Checkpoint())
    lines = (await played())["state.json"].splitlines()
    state = rb'{"hello":"world","\u003ca\u0026b\u003e":"\u2028\u2029%b"}' % "é".encode()
    assert lines[1] == state
    await owner.store.restore_checkpoint()
    assert owner.store.state == {"hello": "world", "<a&b>": "\u2028\u2029é"}


async def test_a_commit_is_recorded_as_a_new_file(owner, monkeypatch):
    told = []
    for name in ("create", "write", "rename", "gate", "barrier"):
        true = getattr(Recorder, name)

        def told_too(self, *args, name=name, true=true, **kwargs):
            told.append((name, *args))
            return true(self, *args, **kwargs)

        monkeypatch.setattr(Recorder, name, told_too)
    for _ in range(2):
        told.clear()
        await owner.commit(CHECKPOINT)
        gate, create, write, rename, barrier = told
        next_path = f"{owner.recorder.directory}/next.json"
        assert gate == ("gate", frozenset())
        assert create == ("create", next_path)
        assert (write[0], write[2:]) == ("write", (0, GOLDEN))
        assert rename == ("rename", next_path, f"{owner.recorder.directory}/state.json")
        assert barrier == ("barrier",)
    hints = await owner.recorder.build_hints()
    assert len(hints.live_nodes) == 1


async def test_a_leftover_next_file_is_overwritten(owners_of):
    owners = await owners_of(lambda recorder: JSONFileStore(recorder, {"hello": "world"}))
    first = await owners.next()
    path = first.directory / "next.json"
    left_over = b"left over, and longer than any other content " * 100
    first.recorder.write(first.recorder.create(str(path)), 0, left_over)
    await first.recorder.barrier()
    await owners.end(first)
    second = await owners.next()
    assert (second.directory / "next.json").exists()
    assert second.checkpoint == Checkpoint()
    await second.commit(CHECKPOINT)
    await owners.end(second)
    third = await owners.next()
    assert (third.directory / "state.json").read_bytes() == GOLDEN
    assert not (third.directory / "next.json").exists()
    assert third.checkpoint == CHECKPOINT


async def test_state_has_the_types_that_were_named(owners_of):
    words = await owners_of(lambda recorder: JSONFileStore(recorder, Words()))
    counts = await owners_of(lambda recorder: JSONFileStore(recorder, {}, kind=dict[str, Count]))
    plain = await owners_of(lambda recorder: JSONFileStore(recorder, {}))
    for owners, state, found in (
        (words, Words({7: Count(3, {"a"})}), Words({7: Count(3, {"a"})})),
        (counts, {"a": Count(1, {"b"})}, {"a": Count(1, {"b"})}),
        (
            plain,
            {7: (1, 2), "a": Count(1, {"b"})},
            {"7": [1, 2], "a": {"times": 1, "names": ["b"]}},
        ),
    ):
        first = await owners.next()
        first.store.state = state
        await first.commit(checkpoint_of(1))
        await owners.end(first)
        second = await owners.next()
        assert second.store.state == found


async def test_state_of_a_new_store_is_a_copy(owners_of):
    initial = {"names": []}
    owners = await owners_of(lambda recorder: JSONFileStore(recorder, initial))
    owner = await owners.next()
    owner.store.state["names"].append("a")
    assert initial == {"names": []}
    await owner.store.restore_checkpoint()
    assert owner.store.state == initial


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "found 0 in 0 bytes"),
        (GOLDEN[:-1], "found 2"),
        (GOLDEN + GOLDEN, "found 6"),
        (GOLDEN.replace(b'{"hello":"world"}', b"[]"), "Expected `object`, got `array`"),
        (GOLDEN.replace(b'{"hello":"world"}', b"{"), "Input data was truncated"),
        (GOLDEN.replace(b'"ack_intents"', b"ack_intents"), "a line cannot be read"),
        (GOLDEN.replace(b'"AQIDBAUG"', b'"AQID"'), "expected 6 bytes"),
        (GOLDEN.replace(b"111", b"-111"), "invalid ReadThrough"),
        (b'{"foo":111}\n{"hello":"world"}\n[1]\n', "the JSON is not a Checkpoint"),
    ],
)
async def test_a_file_of_something_else_is_reported(owner, content, problem):
    (owner.directory / "state.json").write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        await owner.store.restore_checkpoint()
    assert str(owner.directory / "state.json") in str(caught.value)


async def test_no_documents_of_go_are_read(owner):
    """A nil map is null."""
    (owner.directory / "state.json").write_bytes(b'null\n{"a":1}\nnull\n')
    assert await owner.store.restore_checkpoint() == Checkpoint()
    assert owner.store.state == {"a": 1}


async def test_state_that_is_not_json_is_refused(owner):
    for state, kind in ((object(), None), ({"a"}, dict), ({"a": "\ud800"}, None)):
        with pytest.raises(ValidationError, match=r"state: .* is not JSON"):
            JSONFileStore(owner.recorder, state, kind=kind)
    await owner.commit(CHECKPOINT)
    owner.store.state["self"] = object()
    with pytest.raises(ValidationError, match="cannot be written as JSON"):
        owner.store.start_commit(CHECKPOINT, [])
    owner.store.state["self"] = owner.store.state
    with pytest.raises(ValidationError, match="cannot be written as JSON"):
        owner.store.start_commit(CHECKPOINT, [])
    del owner.store.state["self"]
    await owner.commit(CHECKPOINT)


async def test_a_disk_that_fails_is_reported_and_counts_no_more_after_a_commit(owner):
    (owner.directory / "state.json").mkdir()
    with pytest.raises(StoreError, match=r"state\.json cannot be read"):
        await owner.store.restore_checkpoint()
    await owner.commit(CHECKPOINT)
    owner.store.state["hello"] = "nobody"
    assert await owner.store.restore_checkpoint() == CHECKPOINT
    assert owner.store.state == {"hello": "world"}


async def test_a_commit_that_failed_is_not_what_is_restored(owner):
    await owner.commit(CHECKPOINT)
    owner.store.state["hello"] = "nobody"
    need = asyncio.get_running_loop().create_future()
    commit = owner.store.start_commit(Checkpoint(), [need])
    need.set_exception(DataError("of the test"))
    with pytest.raises(DependencyFailed):
        await commit
    assert await owner.store.restore_checkpoint() == CHECKPOINT
    assert owner.store.state == {"hello": "world"}


async def test_a_store_whose_files_are_gone_is_destroyed_all_the_same(owner, caplog):
    (owner.directory / "state.json").unlink(missing_ok=True)
    owner.directory.rmdir()
    await JSONFileStore(owner.recorder, None).destroy()
    assert "files of a store are left behind" in caplog.text


async def test_large_state_is_written_in_pieces_that_wait_for_room(owners_of, tmp_path):
    """Of a service that takes less than the state at once."""
    owners = await owners_of(lambda recorder: JSONFileStore(recorder, "x" * 5_000_000))
    owner = await owners.next()
    service = owner.recorder._client.append_service(buffer_bytes_max=1 << 20)
    player = Player(owner.recorder._client, FsmHints(owner.recorder.log), tmp_path / "other")
    player.inject_handoff(99)
    recorder = await Recorder.start(owner.recorder._client, service, await player.play(), 99)
    store = JSONFileStore(recorder, "x" * 5_000_000)
    await store.restore_checkpoint()
    commit = store.start_commit(CHECKPOINT, [])
    buffered = []
    while not commit.done():
        buffered.append(service.buffered_bytes)
        await asyncio.wait([commit], timeout=0.001)
    await commit
    assert max(buffered) < 3 << 20
    await owners.end(owner)
    assert len((await owners.next()).store.state) == 5_000_000
    await store.destroy()
