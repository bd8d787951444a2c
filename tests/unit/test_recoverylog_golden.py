"""Whole logs, with their hints, as they were once written. The files of their data never change.

``log.bin`` was recorded by two authors, and has what a late one appended, and an append that was made
again. ``primary.json`` are the hints of its last recorder, ``backup.json`` those of a player.

The golden shards are of our own stores, and are played here without a broker; see `tools/golden_shards.py`.
"""

import hashlib
import json
from pathlib import Path

import pytest

from gazette_platform.consumer.recoverylog import Fsm, FsmHints, Playback, Recording
from gazette_platform.consumer.recoverylog.playback import Inject, Read, WriteFile
from gazette_platform.protocol import parse_fragment_path
from tools.golden_shards import DATA as SHARDS, KINDS, LOG as SHARD_LOG, files_of, kept_log, sha1

DATA = Path(__file__).parent / "data" / "recoverylog"
LOG = "app/logs/shard-000"

EXPECTED = {
    "/IDENTITY": b"7f3c-41",
    "/CURRENT": b"MANIFEST-2\n",
    "/MANIFEST-2": b"\0\0\0<two & three>",
    "/000003.sst": b"kept since the first",
    "/backup/000003.sst": b"kept since the first",
}


def record():
    """Repeats what the log records. Returns: the log, and hints of recorder and player."""
    first = Recording(Fsm(FsmHints(LOG)), LOG, 1234, "/dir", write_head=0)
    log = bytearray()

    def write(recording, path, content, offset=0):
        fnode, frames = recording.create(path)
        return frames + recording.write(fnode, offset, len(content)) + content

    log += write(first, "/dir/IDENTITY.dbtmp", b"7f3c-41")
    log += first.rename("/dir/IDENTITY.dbtmp", "/dir/IDENTITY", content="7f3c-41")
    log += write(first, "/dir/MANIFEST-1", b"one")
    log += write(first, "/dir/000003.sst", b"kept since the first")
    log += write(first, "/dir/CURRENT", b"MANIFEST-1\n")
    first.committed(len(log))
    log += first.link("/dir/000003.sst", "/dir//backup/000003.sst")
    log += bytes(
        log[-40:]
    )  # an append that was made again, and in part before what is recorded here
    playback = played(log, FsmHints(LOG), author=4294967295)
    second = Recording(playback.fsm, LOG, 4294967295, "/dir", write_head=len(log))
    log += write(first, "/dir/late", b"late")
    log += write(second, "/dir/MANIFEST-2", b"<two & three>", offset=3)
    second.committed(len(log))
    log += write(second, "/dir/CURRENT.dbtmp", b"MANIFEST-2\n")
    log += second.rename("/dir/CURRENT.dbtmp", "/dir/CURRENT")
    log += second.remove("/dir/MANIFEST-1")
    by_player = played(log, FsmHints(LOG)).fsm.build_hints(LOG)
    return bytes(log), second.build_hints().to_json(), by_player.to_json()


def played(log, hints, *, author=0, files=None):
    """Plays to the head; or takes the log over, which appends to it."""
    playback = Playback(hints, {hints.log: len(log)})
    playback.inject_handoff(author) if author else playback.finish_at_write_head()
    while (step := playback.next()) is not None:
        if isinstance(step, Inject):
            log += step.content
            playback.injected(len(log))
            continue
        assert isinstance(step, Read)
        piece = bytes(log[step.offset : step.offset + 50])
        for effect in playback.feed(piece) if piece else playback.at_head():
            if isinstance(effect, WriteFile) and files is not None:
                file = files.setdefault(effect.fnode, bytearray())
                file.extend(b"\0" * (effect.offset - len(file)))
                file[effect.offset : effect.offset + len(effect.content)] = effect.content
    return playback


def test_the_same_operations_give_the_same_bytes():
    log, primary, backup = record()
    assert log == (DATA / "log.bin").read_bytes()
    assert primary == (DATA / "primary.json").read_bytes()
    assert backup == (DATA / "backup.json").read_bytes()


@pytest.mark.parametrize("name", ["none", "primary.json", "backup.json"])
def test_the_log_gives_its_files(name):
    hints = FsmHints(LOG) if name == "none" else FsmHints.from_bytes((DATA / name).read_bytes())
    hints.validate()
    files = {}
    fsm = played((DATA / "log.bin").read_bytes(), hints, files=files).fsm
    found = {path: bytes(files[fnode]) for path, fnode in fsm.links.items()}
    assert found | {path: each.encode() for path, each in fsm.properties.items()} == EXPECTED


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def golden_of(kind):
    return json.loads((SHARDS / kind.name / "golden.json").read_text())


def test_golden_shards_are_kept_as_they_were_written(kind):
    golden, folder = golden_of(kind), SHARDS / kind.name
    found = files_of(folder)
    del found["golden.json"]
    assert found == golden["kept"]
    log = kept_log(kind)
    assert (len(log), sha1(log)) == (golden["end"], golden["sha1"])
    end = 0
    for path in sorted((folder / "fragments").iterdir()):
        fragment = parse_fragment_path(SHARD_LOG, path.name)
        assert (fragment.begin, fragment.codec) == (end, kind.codec)
        end = fragment.end
        content = log[fragment.begin : end]
        assert fragment.sum.hex() == hashlib.sha1(content, usedforsecurity=False).hexdigest()
    assert end == golden["end"]


@pytest.mark.parametrize("slot", ["none", "primary", "backup.0", "backup.1"])
def test_golden_shards_give_their_files(kind, slot):
    hints = FsmHints(SHARD_LOG)
    if slot != "none":
        value = (SHARDS / kind.name / "hints" / f"shard-000.{slot}").read_bytes()
        hints = FsmHints.from_bytes(value)
        hints.validate()
        assert hints.to_json() == value
    files = {}
    fsm = played(kept_log(kind), hints, files=files).fsm
    found = {path[1:]: sha1(bytes(files.get(fnode, b""))) for path, fnode in fsm.links.items()}
    assert found == golden_of(kind)["files"]
