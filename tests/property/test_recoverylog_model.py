"""Recovery logs against plain models: sets of numbers, and a directory in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings, strategies as st

from gazette_platform.consumer.recoverylog import (
    Fsm,
    FsmHints,
    Playback,
    Recording,
    Segment,
    SegmentSet,
    ShardHints,
    judge_fragment,
    needs_of,
)
from gazette_platform.consumer.recoverylog.playback import (
    CreateFile,
    Inject,
    Read,
    RemoveFile,
    WriteFile,
)

LOG = "a/log"

# ---------------------------------------------------------------------- segments


@st.composite
def histories(draw):
    """Segments cut from one history, and the author and log of each number of it.

    The last run is what a recorder has made, or a player, and all others are a player's.
    """
    runs = draw(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5))
    owners, log = [], 0
    for author, (length, goes_to_new_log) in enumerate(runs, 1):
        log += goes_to_new_log
        owners += [(author, f"log/{log}")] * length
    is_recorded = draw(st.booleans())
    cuts = st.tuples(st.integers(0, len(owners) - 1), st.integers(0, 5), st.integers(0, 9))
    segments = []
    for first, length, slack in draw(st.lists(cuts, max_size=12)):
        last = first
        while last < min(first + length, len(owners) - 1) and owners[last + 1] == owners[first]:
            last += 1
        is_open = is_recorded and owners[first][0] == len(runs)
        author, name = owners[first]
        begin = 10 * first + 10
        segments.append(
            Segment(
                author,
                first + 1,
                begin - slack if is_open else begin,
                first * 7,
                last + 1,
                0 if is_open else 10 * last + 20,
                name,
            )
        )
    return segments, owners, draw(st.permutations(segments))


@given(histories())
def test_gs3_a_set_is_of_the_same_numbers_in_whatever_order_they_come(history):
    segments, owners, shuffled = history
    # A lower bound that is before that of an earlier number contradicts it.
    segments = monotonic(segments)
    shuffled = [each for each in shuffled if each in segments]
    whole = SegmentSet(segments)
    grown = SegmentSet()
    for segment in shuffled:
        grown = SegmentSet((*grown, segment))
    assert grown == whole
    assert SegmentSet(whole) == whole
    numbers = [n for each in whole for n in range(each.first_seq_no, each.last_seq_no + 1)]
    assert numbers == sorted(
        {n for each in segments for n in range(each.first_seq_no, each.last_seq_no + 1)}
    )
    for each in whole:
        for n in range(each.first_seq_no, each.last_seq_no + 1):
            assert (each.author, each.log) == owners[n - 1]
        assert each.first_checksum == (each.first_seq_no - 1) * 7
    for one, other in zip(whole, list(whole)[1:], strict=False):
        is_joint = one.last_seq_no + 1 == other.first_seq_no
        assert not (is_joint and (one.author, one.log) == (other.author, other.log))


def monotonic(segments):
    kept = []
    for each in sorted(segments, key=lambda each: (each.first_seq_no, each.first_offset)):
        if all(each.first_offset >= one.first_offset or each.log != one.log for one in kept):
            kept.append(each)
    return kept


# ---------------------------------------------------------------------- directories


def play(log, hints, *, piece=64, author=0):
    """Play `hints` to the head of a log, or until `author` has taken it over.

    Returns: the playback, and its files by path.
    """
    playback = Playback(hints, {LOG: len(log)})
    if author:
        playback.inject_handoff(author)
    else:
        playback.finish_at_write_head()
    files: dict[int, bytearray] = {}
    while (step := playback.next()) is not None:
        if isinstance(step, Inject):
            log += step.content
            playback.injected(len(log))
            continue
        assert isinstance(step, Read)
        if step.offset < len(log):
            effects = playback.feed(bytes(log[step.offset : step.offset + piece]))
        else:
            effects = playback.at_head()
        for effect in effects:
            match effect:
                case CreateFile(fnode):
                    assert fnode not in files
                    files[fnode] = bytearray()
                case RemoveFile(fnode):
                    del files[fnode]
                case WriteFile(fnode, offset, data):
                    write(files[fnode], offset, data)
    assert set(files) == set(playback.fsm.live)
    found = {path: bytes(files[fnode]) for path, fnode in playback.fsm.links.items()}
    return playback, found | {p: c.encode() for p, c in playback.fsm.properties.items()}


def write(file, offset, data):
    if not data:
        return
    file.extend(b"\0" * (offset - len(file)))
    file[offset : offset + len(data)] = data


@dataclass
class World:
    """A log, the recorder that has it, those that had it, and what the files are to be."""

    content: bytearray = field(default_factory=bytearray)
    model: dict[str, bytearray] = field(default_factory=dict)
    zombies: list[Recording] = field(default_factory=list)
    hints: list[FsmHints] = field(default_factory=list)
    authors: int = 1
    identity: bytes | None = None

    def __post_init__(self):
        self.recording = Recording(Fsm(FsmHints(LOG)), LOG, 1, "/dir", write_head=0)

    def append(self, *pieces):
        self.content += b"".join(pieces)
        # Some appends are answered late.
        if len(self.content) % 3:
            self.recording.committed(len(self.content))

    def act(self, kind, one, other, data):  # noqa: C901  one case each
        files, model = self.recording, self.model
        path, target = f"/dir/{one}", f"/dir//{other}"
        there = path in model
        match kind:
            case "create":
                self.append(files.create(path)[1])
                model[path] = bytearray()
            case "write" if there:
                self.append(files.write(files.open(path), other, len(data)), data)
                write(model[path], other, data)
            case "remove" if there:
                self.append(files.remove(path))
                del model[path]
            case "link" if there and f"/dir/{other}" not in model:
                self.append(files.link(path, target))
                model[f"/dir/{other}"] = model[path]
            case "rename" if there:
                self.append(files.rename(path, target))
                # Of two links of one file POSIX leaves both.
                if model.get(f"/dir/{other}") is not model[path]:
                    model[f"/dir/{other}"] = model.pop(path)
            case "identity" if there:
                self.append(files.rename(path, "/dir/IDENTITY", content=data.hex()))
                del model[path]
                self.identity = data.hex().encode()
            case "no answer":
                self.content += self.content[-7 * one :]  # as a retry that began in mid-frame
            case "again":
                self.content += bytes(self.content)  # all of it
            case "late" if self.zombies:
                zombie = self.zombies[one % len(self.zombies)]
                self.content += zombie.create(path)[1]
            case "hand off":
                self.hand_off(one)
            case "hint":
                self.hints.append(files.build_hints())

    def hand_off(self, which):
        """Another player takes over, by some of the hints that were made."""
        hints = self.some_hints(which)
        self.authors += 1
        playback, found = play(self.content, hints, author=self.authors)
        assert found == self.expected()
        self.zombies.append(self.recording)
        self.hints.append(playback.fsm.build_hints(LOG))  # those of a player
        self.recording = Recording(
            playback.fsm, LOG, self.authors, "/dir", write_head=len(self.content)
        )

    def some_hints(self, which):
        known = [FsmHints(LOG), *self.hints]
        return known[-1 - which % len(known)]

    def expected(self):
        files = {path.removeprefix("/dir"): bytes(data) for path, data in self.model.items()}
        return files if self.identity is None else files | {"/IDENTITY": self.identity}


kinds = st.sampled_from(
    (
        *["create", "write"] * 2,
        *["write", "remove", "link", "rename", "identity"],
        *["no answer", "again", "late", "hand off"],
        *["hint"] * 2,
    )
)
actions = st.lists(
    st.tuples(kinds, st.integers(0, 3), st.integers(0, 3), st.binary(max_size=12)), max_size=40
)


# A file that is removed, and a property that is replaced, in a part of the log that is skipped.
REMOVED = ["create 0", "create 1", "write 0", "hand off 0", "remove 1", "write 0"]
REPLACED = ["create 0", "create 1", "identity 1", "write 0", "hand off 0"]
REPLACED += ["create 2", "identity 2", "write 0"]


def spelled(history):
    return [
        (each[:-2], int(each[-1]), 0, f"{number}".encode()) for number, each in enumerate(history)
    ]


@settings(max_examples=100)
@example(spelled(REMOVED), 90)
@example(spelled(REPLACED), 90)
@given(actions, st.integers(1, 90))
def test_any_hints_give_the_files_that_were_recorded(history, piece):
    world = World()
    for action in history:
        if action[0] == "again" and len(world.content) > 2000:
            continue
        world.act(*action)
    world.hints.append(world.recording.build_hints())
    for hints in [FsmHints(LOG), *world.hints]:
        hints.validate()
        assert FsmHints.from_bytes(hints.to_json()) == hints
        playback, found = play(world.content, hints, piece=piece)
        assert found == world.expected()
        assert playback.fsm.next_checksum == world.recording.fsm.next_checksum


@settings(max_examples=100)
@given(actions, st.integers(1, 30))
def test_what_may_be_pruned_is_not_read(history, fragment_bytes):
    world = World()
    for action in history:
        if action[0] == "again" and len(world.content) > 2000:
            continue
        world.act(*action)
    world.hints.append(world.recording.build_hints())
    slots = tuple(world.hints[-3:])
    needs = needs_of([ShardHints(LOG, slots)])
    left = bytearray(world.content)
    for begin in range(0, len(left), fragment_bytes):
        end = min(begin + fragment_bytes, len(left))
        verdict = judge_fragment(
            needs.segments.get(LOG, ()), begin=begin, end=end, is_persisted=True
        )
        if verdict == "delete":
            left[begin:end] = b"\xaa" * (end - begin)
    for hints in slots if needs.segments else ():
        assert play(left, hints)[1] == world.expected()
