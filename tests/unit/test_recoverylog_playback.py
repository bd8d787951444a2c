"""What a player reads, what it makes of it, and how it takes a log over."""

import time

import pytest

from gazette_platform.consumer.recoverylog import (
    Fsm,
    FsmHints,
    Playback,
    Recording,
    Verdict,
)
from gazette_platform.consumer.recoverylog.playback import (
    CreateFile,
    Ignored,
    Inject,
    Read,
    RemoveFile,
    Skipped,
    WriteFile,
)
from gazette_platform.errors import DataError, Desynchronized, ValidationError

LOG = "a/log"


class Log:
    """A log in memory, and a recorder that appends to it."""

    def __init__(self, content=b"", *, author=1, fsm=None, log=LOG):
        self.content = content
        self.files = Recording(
            fsm or Fsm(FsmHints(log)), log, author, "/dir", write_head=len(content)
        )

    def append(self, *pieces):
        self.content += b"".join(pieces)
        self.files.committed(len(self.content))
        return len(self.content)

    def create(self, path):
        fnode, frames = self.files.create(path)
        self.append(frames)
        return fnode

    def write(self, fnode, offset, content):
        self.append(self.files.write(fnode, offset, len(content)), content)


def played(playback, log, *, piece=1 << 20):
    """Feed all that is asked for, until the head. Returns: what follows, and the step at the head."""
    effects = []
    while isinstance(step := playback.next(), Read) and step.offset < len(log.content):
        effects += playback.feed(log.content[step.offset : step.offset + piece])
    return effects, step


def told(effects):
    return [
        (each.fnode, each.offset, bytes(each.content)) if isinstance(each, WriteFile) else each
        for each in effects
    ]


def test_files_follow_from_what_was_recorded():
    log = Log()
    fnode = log.create("/dir/a")
    log.write(fnode, 3, b"hello")
    log.write(fnode, 0, b"")
    log.append(log.files.link("/dir/a", "/dir/b"))
    log.append(log.files.remove("/dir/a"))
    log.append(log.files.remove("/dir/b"))
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    assert playback.next() == Read(LOG, 0, is_blocking=True)
    effects, step = played(playback, log)
    assert told(effects) == [CreateFile(1), (1, 3, b"hello"), RemoveFile(1)]
    assert step == Read(LOG, len(log.content), is_blocking=True)
    assert playback.is_tailing
    assert playback.fsm.next_checksum == log.files.fsm.next_checksum


@pytest.mark.parametrize("piece", [1, 2, 7, 16, 50])
def test_gp5_pieces_of_any_size_give_the_same(piece):
    log = Log(b"?garbage" * 3)
    fnode = log.create("/dir/a")
    log.write(fnode, 0, b"x" * 40)
    log.write(fnode, 40, b"y")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    effects, _ = played(playback, log, piece=piece)
    written = b"".join(each.content for each in effects if isinstance(each, WriteFile))
    assert written == b"x" * 40 + b"y"
    skipped = [each for each in effects if isinstance(each, Skipped)]
    assert (skipped[0].begin, skipped[-1].end) == (0, 24)
    assert sum(each.end - each.begin for each in skipped) == 24


def test_gp1_it_is_at_the_head_when_it_has_read_through():
    log = Log()
    log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    assert not playback.is_tailing
    playback.feed(log.content[:-1])
    assert playback.next() == Read(LOG, len(log.content) - 1, is_blocking=True)
    assert not playback.is_tailing
    playback.feed(log.content[-1:])
    playback.next()
    assert playback.is_tailing


def test_an_empty_log_is_at_its_head_at_once():
    playback = Playback(FsmHints(LOG), {LOG: 0})
    playback.finish_at_write_head()
    assert playback.next() == Read(LOG, 0, is_blocking=False)
    assert playback.at_head() == []
    assert playback.next() is None
    assert playback.is_done


@pytest.mark.parametrize("is_early", [True, False])
def test_gp1_it_finishes_at_the_head_whenever_it_was_asked(is_early):
    log = Log()
    log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    if is_early:
        playback.finish_at_write_head()
        assert playback.next() == Read(LOG, 0, is_blocking=True)  # below the read-through
    _, step = played(playback, log)
    assert step.is_blocking is not is_early
    if not is_early:
        playback.finish_at_write_head()
    fnode = log.create("/dir/b")  # meanwhile
    effects, step = played(playback, log)
    assert effects == [CreateFile(fnode)]
    assert not step.is_blocking
    playback.at_head()
    assert playback.is_done
    assert playback.fsm.links == {"/a": 1, "/b": 2}


def test_it_is_asked_to_end_once():
    for ask in (Playback.finish_at_write_head, lambda each: each.inject_handoff(7)):
        playback = Playback(FsmHints(LOG), {LOG: 0})
        ask(playback)
        with pytest.raises(ValidationError, match="was asked to end before"):
            playback.inject_handoff(8)
        with pytest.raises(ValidationError, match="was asked to end before"):
            playback.finish_at_write_head()
    with pytest.raises(ValidationError, match="author"):
        Playback(FsmHints(LOG), {LOG: 0}).inject_handoff(0)


@pytest.mark.parametrize(
    "garbage", [b"f", b"\x66\x33\x93\x36", b"\x66\x33\x93\x36\x09\0\0\0abc", b"?" * 9]
)
def test_gp7_it_finishes_behind_garbage(garbage):
    log = Log()
    log.create("/dir/a")
    begin = len(log.content)
    log.append(garbage)
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.finish_at_write_head()
    effects, _ = played(playback, log)
    effects += playback.at_head()
    skipped = [each for each in effects if isinstance(each, Skipped)]
    assert (skipped[0].begin, skipped[-1].end) == (begin, len(log.content))
    assert playback.is_done


@pytest.mark.parametrize("piece", [3, 64, 1000, 1 << 20])
@pytest.mark.parametrize("garbage", [b"\x66\x33\x93\x36", b"\x66\x33\x93\x36\0\0\0\0", b"\x66"])
def test_garbage_that_is_full_of_magics_is_reported_as_one(garbage, piece):
    log = Log(garbage * 1000)
    begin = len(log.content)
    fnode = log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    effects, _ = played(playback, log, piece=piece)
    assert effects.pop() == CreateFile(fnode)
    assert (effects[0].begin, effects[-1].end) == (0, begin)
    assert len(effects) <= begin // piece + 2


def test_garbage_takes_time_by_its_size():
    playback = Playback(FsmHints(LOG), {LOG: 1 << 30})
    begin_s = time.process_time()
    assert playback.feed(b"\x66\x33\x93\x36" * (1 << 18)) == [Skipped(LOG, 0, (1 << 20) - 4)]
    # Well below a second; a pass over the rest for each magic takes a minute.
    assert time.process_time() - begin_s < 8


def test_gp5_a_frame_that_holds_no_operation_is_passed_over():
    log = Log(bytes.fromhex("66339336 02000000 ffff"))
    fnode = log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    effects, _ = played(playback, log)
    assert effects == [Skipped(LOG, 0, 10), CreateFile(fnode)]


def test_gp4_gp8_the_hand_off_takes_the_log_over():
    log = Log()
    fnode = log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.inject_handoff(1337)
    _, step = played(playback, log)
    assert step == Read(LOG, len(log.content), is_blocking=False)
    playback.at_head()
    step = playback.next()
    assert isinstance(step, Inject)
    assert (step.log, step.author) == (LOG, 1337)
    end = log.append(step.content)
    playback.injected(end)
    # The old recorder is late: no reader takes what it appends.
    log.write(fnode, 0, b"late")
    effects, step = played(playback, log)
    assert effects == []
    assert step is None
    assert playback.is_done
    other = Playback(FsmHints(LOG), {LOG: len(log.content)})
    effects, _ = played(other, log)
    assert effects == [CreateFile(1)]  # the write is old: no reader reports it
    assert other.fsm.next_checksum == playback.fsm.next_checksum
    successor = Recording(playback.fsm, LOG, 1337, "/dir", write_head=end)
    log.append(successor.write(fnode, 0, 3), b"new")
    effects, _ = played(other, log)
    assert told(effects) == [(1, 0, b"new")]


@pytest.mark.parametrize("piece", [1, 13, 1000])
def test_a_hand_off_is_found_in_pieces_and_not_before(piece):
    log = Log(author=7)  # which another had before, by chance
    log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.inject_handoff(7)
    effects, step = played(playback, log, piece=piece)
    assert effects == [CreateFile(1)]
    assert step == Read(LOG, len(log.content), is_blocking=False)
    playback.at_head()
    playback.injected(log.append(playback.next().content))
    assert played(playback, log, piece=piece) == ([], None)
    assert playback.is_done


def test_gp8_a_write_that_comes_before_the_hand_off_is_read_and_the_hand_off_made_again():
    log = Log()
    fnode = log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.inject_handoff(7)
    played(playback, log)
    playback.at_head()
    first = playback.next()
    log.write(fnode, 0, b"first")
    playback.injected(log.append(first.content))
    effects, step = played(playback, log)
    assert told(effects)[0] == (1, 0, b"first")
    assert step == Read(LOG, len(log.content), is_blocking=False)
    playback.at_head()
    second = playback.next()
    assert second.content != first.content
    playback.injected(log.append(second.content))
    assert played(playback, log)[1] is None
    assert playback.is_done


def test_gp8_of_two_hand_offs_at_once_the_last_in_the_log_has_it():
    log = Log()
    log.create("/dir/a")
    players = [Playback(FsmHints(LOG), {LOG: len(log.content)}) for _ in range(2)]
    steps = []
    for author, player in enumerate(players, 2):
        player.inject_handoff(author)
        played(player, log)
        player.at_head()
        steps.append(player.next())
    ends = [log.append(step.content) for step in steps]
    for player, end in zip(players, ends, strict=True):
        player.injected(end)
    # The second sees that the first was before it, and tries again after that.
    assert played(players[0], log)[1] is None
    assert players[0].is_done
    assert not players[1].is_done
    assert isinstance(played(players[1], log)[1], Read)
    players[1].at_head()
    again = players[1].next()
    assert again.author == steps[1].author
    players[1].injected(log.append(again.content))
    assert played(players[1], log)[1] is None
    assert players[1].is_done
    reader = Playback(FsmHints(LOG), {LOG: len(log.content)})
    played(reader, log)
    assert reader.fsm.next_checksum == players[1].fsm.next_checksum
    assert reader.fsm.next_seq_no == players[0].fsm.next_seq_no + 1


def test_gb3_hints_say_which_of_two_branches_is_played():
    """Two writers that do not know of each other: registers were not checked."""
    log = Log()
    fnode = log.create("/dir/a")
    log.write(fnode, 0, b"both ")
    writers = []
    for author in (2, 3):
        player = Playback(FsmHints(LOG), {LOG: len(log.content)})
        played(player, log)
        writers.append(Recording(player.fsm, LOG, author, "/dir", write_head=len(log.content)))

    def record(writer, frames, content=b""):
        log.append(frames, content)
        writer.committed(len(log.content))

    for turn in range(3):
        for name, writer in zip(("two", "three"), writers, strict=True):
            content = f"{name} {turn} ".encode()
            record(writer, writer.write(fnode, 10 * turn, len(content)), content)
            record(writer, writer.create(f"/dir/{name} {turn}")[1])
    hints = [writer.build_hints() for writer in writers]
    for name, writer, of_writer in zip(("two", "three"), writers, hints, strict=True):
        player = Playback(of_writer, {LOG: len(log.content)})
        effects, _ = played(player, log)
        written = [bytes(each.content) for each in effects if isinstance(each, WriteFile)]
        assert written == [b"both ", *(f"{name} {turn} ".encode() for turn in range(3))]
        assert set(player.fsm.links) == {"/a", *(f"/{name} {turn}" for turn in range(3))}
        assert player.fsm.next_checksum == writer.fsm.next_checksum
    # Without hints, the branch that came first.
    player = Playback(FsmHints(LOG), {LOG: len(log.content)})
    played(player, log)
    assert "/two 2" in player.fsm.links


def test_a_hand_off_is_found_behind_the_beginning_of_a_frame():
    log = Log()
    log.create("/dir/a")
    log.append(b"\x66\x33\x93\x36\xff\0\0\0abc")  # would hold all that follows
    playback = Playback(FsmHints(LOG), {LOG: len(log.content) - 3})
    playback.inject_handoff(7)
    played(playback, log)
    # It asks for the head now, but let the beginning of the frame come only after that.
    playback.at_head()
    step = playback.next()
    begin = len(log.content)
    playback.injected(log.append(b"\x66\x33\x93\x36\xff\0\0\0", step.content))
    effects, step = played(playback, log)
    assert step is None
    assert playback.is_done
    assert effects[0].begin == begin


def test_a_hand_off_that_was_swallowed_by_content_is_an_error():
    log = Log()
    log.create("/dir/a")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.inject_handoff(7)
    played(playback, log)
    playback.at_head()
    playback.next()
    playback.injected(log.append(b"?" * 20))
    with pytest.raises(Desynchronized, match="hand-off"):
        played(playback, log)


def test_gp4_content_that_ends_early_is_an_error():
    log = Log()
    fnode = log.create("/dir/a")
    log.append(log.files.write(fnode, 0, 5), b"abc")
    for tell in (Playback.at_head, lambda each: each.jumped(1000)):
        playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
        playback.finish_at_write_head()
        played(playback, log)
        with pytest.raises(DataError, match="unexpected EOF: 2 bytes of the content"):
            tell(playback)


def test_what_does_not_fit_is_reported_unless_it_is_to_be_expected():
    log = Log()
    log.create("/dir/a")
    begin = len(log.content)
    twice = log.content
    log.append(twice)  # a retry: expected
    late = Log(author=2, fsm=Fsm(FsmHints(LOG)))
    for path in ("/dir/x", "/dir/y", "/dir/z"):
        late.create(path)
    log.append(late.content)
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    effects, _ = played(playback, log)
    assert effects == [
        CreateFile(1),
        Ignored(LOG, begin * 3, 2, Verdict.CHECKSUM_MISMATCH),
        Ignored(LOG, len(log.content) - 26, 3, Verdict.WRONG_SEQ_NO),
    ]


def hinted_log():
    """A log of two files with dead ones between, and what players and recorders hint of it."""
    log = Log(b"?" * 20)
    log.create("/dir/a")
    dead = log.create("/dir/dead")
    log.write(dead, 0, b"x" * 100)
    log.append(log.files.remove("/dir/dead"))
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    played(playback, log)
    playback.inject_handoff(2)
    playback.next()
    playback.at_head()
    log.append(playback.next().content)
    playback.injected(len(log.content))
    played(playback, log)
    assert playback.is_done
    log.files = Recording(playback.fsm, LOG, 2, "/dir", write_head=len(log.content))
    fnode = log.create("/dir/b")
    log.write(fnode, 0, b"hello")
    reader = Playback(FsmHints(LOG), {LOG: len(log.content)})
    played(reader, log)
    return log, reader.fsm.build_hints(LOG), log.files.build_hints()


@pytest.mark.parametrize("which", [1, 2])
def test_gp1_dead_ranges_are_not_read(which):
    log, *hints = hinted_log()
    playback = Playback(hints[which - 1], {LOG: len(log.content)})
    offsets, effects = [], []
    while (step := playback.next()).offset < len(log.content):
        offsets.append(step.offset)
        effects += playback.feed(log.content[step.offset : step.offset + 16])
    assert told(effects) == [CreateFile(1), CreateFile(6), (6, 0, b"hello")]
    dead = log.content.index(b"x" * 100)
    assert not any(dead <= offset < dead + 100 for offset in offsets)
    assert playback.fsm.links == {"/a": 1, "/b": 6}
    assert playback.fsm.next_checksum == log.files.fsm.next_checksum


def test_gp4_what_was_fed_and_is_dead_is_passed_without_another_read():
    log, hints, _ = hinted_log()
    playback = Playback(hints, {LOG: len(log.content)})
    assert playback.next().offset == 20
    assert told(playback.feed(log.content[20:])) == [CreateFile(1), CreateFile(6), (6, 0, b"hello")]


def test_gp9_hints_beyond_the_head_are_possible_data_loss():
    _, by_player, by_recorder = hinted_log()
    last = by_player.live_nodes[-1].segments[-1]
    Playback(by_player, {LOG: last.last_offset})
    with pytest.raises(DataError, match="possible data loss"):
        Playback(by_player, {LOG: last.last_offset - 1})
    first_offset = by_recorder.live_nodes[-1].segments[-1].first_offset
    Playback(by_recorder, {LOG: first_offset + 1})
    with pytest.raises(DataError, match="possible data loss"):
        Playback(by_recorder, {LOG: first_offset})


def test_gp9_hints_that_the_log_does_not_have_are_possible_data_loss():
    log, _, hints = hinted_log()
    end = len(log.content) - len(b"hello") - 10
    playback = Playback(hints, {LOG: end})
    log.content = log.content[:end]
    with pytest.raises(DataError, match=r"hints are left that were not found.*possible data loss"):
        played(playback, log)


def test_a_jump_is_fatal_if_it_passes_what_is_needed():
    log, by_player, by_recorder = hinted_log()
    first = by_player.live_nodes[0].segments[0]
    playback = Playback(by_player, {LOG: len(log.content)})
    with pytest.raises(DataError, match="possible data loss"):
        playback.jumped(first.last_offset)
    playback = Playback(by_player, {LOG: len(log.content)})
    playback.jumped(first.last_offset - 1)
    assert playback.next().offset == first.last_offset - 1
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.feed(b"\x66\x33")
    playback.jumped(20)
    effects, _ = played(playback, log)
    assert effects[0] == CreateFile(1)
    assert by_recorder.live_nodes[0].segments[0].first_offset <= first.first_offset


@pytest.mark.parametrize("is_hinted", [False, True])
def test_a_hole_that_operations_are_missing_of_is_possible_data_loss(is_hinted):
    """Without it the files would be those of long ago, or none at all, and the log be taken over so."""
    log = Log()
    log.create("/dir/a")
    hints = log.files.build_hints() if is_hinted else FsmHints(LOG)
    begin = len(log.content)
    log.create("/dir/b")
    hole = len(log.content) if is_hinted else begin
    log.create("/dir/c")

    def jumping(head):
        playback = Playback(hints, {LOG: head})
        if is_hinted:
            playback.feed(log.content[:begin])
        playback.jumped(hole)
        return playback

    with pytest.raises(DataError, match=f"nothing up to {hole}, .* possible data loss"):
        played(jumping(len(log.content)), log)
    # A standby that has come to the head, and was held up since, does not wait until it is promoted.
    playback = jumping(hole)
    assert playback.next() == Read(LOG, hole, is_blocking=True)
    with pytest.raises(DataError, match=f"nothing up to {hole}, .* possible data loss"):
        playback.feed(log.content[hole:])


def test_a_hole_in_which_nothing_was_missed_does_no_harm():
    log = Log(b"?" * 20)
    log.create("/dir/a")
    twice = log.content[20:]
    late = Log(author=2, fsm=Fsm(FsmHints(LOG)))
    for path in ("/dir/x", "/dir/y"):
        late.create(path)
    log.append(late.content, twice)  # of an author who came too late, and of a retry
    log.create("/dir/b")
    for hole in (20, len(log.content)):
        playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
        playback.finish_at_write_head()
        playback.jumped(hole)
        played(playback, log)
        playback.at_head()
        assert playback.is_done
        assert set(playback.fsm.links) == ({"/a", "/b"} if hole == 20 else set())


def test_gp10_two_logs_are_read_in_order():
    log, hints, _ = hinted_log()
    old = Playback(hints, {LOG: len(log.content)})
    old.finish_at_write_head()
    played(old, log)
    old.at_head()
    new = Log(b"!" * 9, author=3, fsm=old.fsm, log="b/log")
    frames = new.files.begin()
    new.append(frames)
    new.write(6, 5, b" there")
    forked = new.files.build_hints()
    forked.validate()
    assert forked.logs() == (LOG, "b/log")
    logs = {LOG: log, "b/log": new}
    heads = {name: len(each.content) for name, each in logs.items()}
    playback = Playback(forked, heads)
    with pytest.raises(DataError, match="b/log: its head 9 is before"):
        Playback(forked, heads | {"b/log": 9})
    playback.inject_handoff(9)
    effects = []
    while isinstance(step := playback.next(), Read):
        content = logs[step.log].content
        if step.offset == len(content):
            playback.at_head()
        else:
            effects += playback.feed(content[step.offset : step.offset + 11])
    assert step.log == "b/log"
    writes = [each for each in told(effects) if isinstance(each, tuple)]
    assert b"".join(each[2] for each in writes) == b"hello there"
    assert playback.fsm.next_checksum == new.files.fsm.next_checksum


@pytest.mark.parametrize("is_begin", [False, True])
def test_operations_that_are_missing_without_a_hole_are_possible_data_loss(is_begin):
    """As of a log that was made again under its recorder, or that has lost its end while that went on."""
    log = Log()
    if not is_begin:
        log.create("/dir/a")
    log.files.create("/dir/lost")
    log.create("/dir/b")
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.finish_at_write_head()
    with pytest.raises(DataError, match=r"made again, or has lost its end, .* possible data loss"):
        played(playback, log)


def test_operations_of_who_came_too_late_are_not_missed_and_nor_is_what_others_went_on_without():
    log = Log()
    log.create("/dir/a")
    late = Log(author=2, fsm=Fsm(FsmHints(LOG)))
    for path in ("/dir/x", "/dir/y", "/dir/z"):
        late.create(path)
    log.append(late.content)  # of an author who came too late
    successor = Log(author=3, fsm=_played_fsm(log))
    log.files.create("/dir/lost")
    log.create("/dir/b")  # lost its place; a former version has gone on before it
    successor.create("/dir/c")
    log.append(successor.content)
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    playback.finish_at_write_head()
    played(playback, log)
    playback.at_head()
    assert playback.is_done
    assert set(playback.fsm.links) == {"/a", "/c"}


def _played_fsm(log):
    playback = Playback(FsmHints(LOG), {LOG: len(log.content)})
    played(playback, log)
    return playback.fsm
