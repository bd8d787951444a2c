"""Has typed tables written without end while there are such: ``python -m gazette_platform.platform.typed_writer``.

It runs ``gazctl lake run --continuous``. That costs a Spark, so it is started once a table spec says `every`, and stopped when
none does any more. If it ends by itself, it is started again, later
each time: what is wrong with it, with Spark say, is in its log, and does not end a platform.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_platform.platform.component import Child

if TYPE_CHECKING:
    from types import FrameType


_LOOK_S: Final = 5.0
_POLL_S: Final = 0.2
_PAUSE_S: Final = 2.0
_PAUSE_S_MAX: Final = 60.0
# For the current run, which is the last one then.
_STOP_S: Final = 45.0
_COMMAND: Final = (
    sys.executable, "-m", "gazette_platform.cli.gazctl", "lake", "run", "--continuous"
)  # fmt: skip


def is_wanted(folder: Path) -> bool:
    """Whether a table spec of a folder says `every`."""
    texts = (path.read_bytes() for path in folder.glob("*.y*ml") if path.is_file())
    try:
        if not any(b"every" in text for text in texts):
            return False
    except OSError:
        return False  # one that was just removed
    # Only now: it is loaded by a process that waits for months.
    from gazette_platform.lake import read_spec_folder  # noqa: PLC0415

    specs = read_spec_folder(folder).specs.values()
    return any(spec.typed is not None and spec.typed.every_s for spec in specs)


def watch(
    folder: Path,
    log: Path,
    stop: threading.Event,
    *,
    command: tuple[str, ...] = _COMMAND,
    look_s: float = _LOOK_S,
    pause_s: float = _PAUSE_S,
) -> None:
    """Have the command run while it is wanted, until `stop` is set.

    Args:
        folder: of table specs.
        log: of the command.
        stop: ends it.
        command: what is run.
        look_s: seconds between two looks at the folder.
        pause_s: seconds to wait before the first start of one that ended by itself; doubled each time, up to a minute.
    """
    pause = pause_s
    while not stop.is_set():
        if not is_wanted(folder):
            stop.wait(look_s)
            continue
        child = Child("typed", command, log=log, environment=os.environ, folder=None)
        if _follow(child, folder, stop, look_s):
            continue
        sys.stderr.write(
            f"{' '.join(command[1:])} {child.how_it_ended()}: it is started again in {pause:g} s\n"
        )
        sys.stderr.flush()
        child.end_group()
        stop.wait(pause)
        pause = min(2 * pause, _PAUSE_S_MAX)


def main() -> None:
    """Watch the folder of the first argument; the second one is the log."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    watch(Path(sys.argv[1]), Path(sys.argv[2]), stop)


def _follow(child: Child, folder: Path, stop: threading.Event, look_s: float) -> bool:
    """Wait for the end of a child, or end it when it is not wanted any more. Returns: whether it was ended."""
    looks = 0
    while child.exit_code() is None:
        if stop.wait(_POLL_S):
            break
        looks += 1
        if looks * _POLL_S >= look_s:
            looks = 0
            if not is_wanted(folder):
                break
    else:
        return False
    child.ask_to_stop()
    waited_s = 0.0
    while child.exit_code() is None and waited_s < _STOP_S:
        threading.Event().wait(_POLL_S)
        waited_s += _POLL_S
    child.end_group()
    return True


if __name__ == "__main__":
    main()
