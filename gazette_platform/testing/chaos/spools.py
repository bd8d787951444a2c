"""What may happen to the spools of a broker: files are copied, lost, or torn."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gazette_platform.broker.spool.head_records import (
    BLOCK_BYTES,
    SLOT_BYTES,
    decode_header,
    decode_record,
    slot_at,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["copy_spools", "lose_files", "lose_spools", "tear_spools"]

_GARBAGE_BYTES = 5000
# Share of tenures that lose no file.
_KEPT_WHOLE = 1 / 3


def lose_spools(spool_dir: Path) -> None:
    """Delete all that is in a spool directory. Blocks. Raises: OSError."""
    for path in spool_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def lose_files(spool_dir: Path, rng: random.Random) -> list[str]:
    """Delete a file of about two tenures in three, of a broker that does not run. Blocks.

    Args:
        spool_dir: the broker's.
        rng: says which file; one in two is the record of a fragment that is closed, if there is one.

    Returns: their names. Raises: OSError.
    """
    lost = []
    for home in sorted(spool_dir.glob("spools/*")):
        by_tenure: defaultdict[str, list[Path]] = defaultdict(list)
        for path in sorted(home.glob("*.*.*")):
            by_tenure[path.name.partition(".")[0]].append(path)
        for paths in by_tenure.values():
            if rng.random() < _KEPT_WHOLE:
                continue
            records = [path for path in paths if path.suffix == ".sealed"]
            path = rng.choice(records if records and rng.random() < 0.5 else paths)
            path.unlink()
            lost.append(path.name)
    return lost


def copy_spools(spool_dir: Path, other: Path, rng: random.Random) -> str:
    """Copy the home that a broker uses, which may run, among those of `other`. Blocks.

    Args:
        spool_dir: the broker's.
        other: another broker's, or the same.
        rng: says whether the copy's name comes before all others, or after them.

    Returns: the copy's name; empty: there is nothing to copy. Raises: OSError.
    """
    homes = sorted(spool_dir.glob("spools/*/heads"), key=lambda path: path.stat().st_mtime_ns)
    if not homes:
        return ""
    name = f"{rng.choice(('00', 'zz'))}-copy-{rng.randbytes(4).hex()}"
    shutil.copytree(homes[-1].parent, other / "spools" / name, copy_function=_copy_if_there)
    return name


def _copy_if_there(source: str, target: str) -> None:
    # A broker that runs removes what it has stored.
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


@dataclass(frozen=True, slots=True)
class _Tenure:
    """One journal of a broker, as its spools tell."""

    journal: str
    heads: Path
    block: int
    """Where its block begins in that file."""
    newest: int
    """The slot that counts: 0 or 1."""
    content: Path
    """Of the fragment that is not closed; there need be none."""
    begin: int
    end: int


def tear_spools(spool_dir: Path, rng: random.Random, *, is_deep: bool) -> list[str]:
    """Tear the spools of a broker that does not run. Blocks.

    Behind what is recorded of open fragments comes garbage, as after a write that was under way.

    Args:
        spool_dir: the broker's.
        rng: says what happens to which journal.
        is_deep: of about three journals in four, tear also what is recorded: cut content off, or
            overwrite a record.

    Returns: what was torn deep, a line each. Raises: OSError.
    """
    done = []
    for tenure in _tenures(spool_dir):
        if tenure.content.exists():
            with tenure.content.open("ab") as file:
                file.write(rng.randbytes(rng.randint(1, _GARBAGE_BYTES)))
        if is_deep and (text := _tear(tenure, rng)):
            done.append(f"{tenure.journal}: {text}")
    return done


def _tear(tenure: _Tenure, rng: random.Random) -> str:
    """Returns: what was done; empty: nothing."""
    match rng.choice(("content", "newer", "older", "nothing")):
        case "content" if tenure.end > tenure.begin and tenure.content.exists():
            kept = rng.randrange(tenure.end - tenure.begin)
            with tenure.content.open("r+b") as file:
                file.truncate(kept)
            return f"{kept} bytes are left of [{tenure.begin}, {tenure.end})"
        case "newer":
            _overwrite(tenure, tenure.newest, rng)
            return f"the record of its end {tenure.end} is torn"
        case "older":
            _overwrite(tenure, 1 - tenure.newest, rng)
            return "the record before the last is torn"
        case _:
            return ""


def _overwrite(tenure: _Tenure, slot: int, rng: random.Random) -> None:
    with tenure.heads.open("r+b") as file:
        file.seek(tenure.block + slot_at(slot))
        file.write(rng.randbytes(SLOT_BYTES))


def _tenures(spool_dir: Path) -> Iterator[_Tenure]:
    """What is recorded, by home and place."""
    for heads in sorted(spool_dir.glob("spools/*/heads")):
        raw = heads.read_bytes()
        for block in range(0, len(raw) - BLOCK_BYTES + 1, BLOCK_BYTES):
            header = decode_header(raw[block : block + BLOCK_BYTES])
            slots = (block + slot_at(number) for number in (0, 1))
            found = [decode_record(raw[at : at + SLOT_BYTES]) for at in slots]
            record = max((one for one in found if one), key=lambda one: one.number, default=None)
            if header is None or record is None:
                continue
            state = record.state
            yield _Tenure(
                journal=header.journal,
                heads=heads,
                block=block,
                newest=found.index(record),
                content=heads.with_name(f"{header.tenure}.{record.ordinal}.content"),
                begin=state.begin,
                end=state.end,
            )
