"""A disk that loses its power: of the files of a folder, what is on it for sure, and what may be.

It watches the calls that this process makes of `os`. A file's content is on the disk as it was when it
was last synced, and a folder's names as they were when the folder was. What came later may exist or
not: names in the order in which they were given, content in any.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("open", "rename", "link", "unlink", "mkdir", "rmdir")
CONTENT = ("pwrite", "ftruncate", "posix_fallocate", "write")
SYNCS = ("fsync", "fdatasync")


@dataclass
class Folder:
    """The names in a folder, after each change; the disk has those of `synced` at least."""

    history: list[dict[str, int]]
    synced: int = 0


@dataclass
class Snapshot:
    """What a power failure at some moment would leave."""

    call: str
    root: int
    folders: dict[int, tuple[list[dict[str, int]], int]]
    synced: dict[int, bytes]
    current: dict[int, bytes]
    told: object = None

    def restore(self, target, rng=None, *, sector=512):
        """Write down what is on the disk.

        Args:
            rng: decides of what is not sure; None: it is not there.
            sector: bytes that the disk writes together.
        """
        self._folder(self.root, target, rng, sector)

    def _folder(self, node, target, rng, sector):
        target.mkdir(exist_ok=True)
        history, synced = self.folders[node]
        at = synced if rng is None else rng.randint(synced, len(history) - 1)
        for name, inner in history[at].items():
            if inner in self.folders:
                self._folder(inner, target / name, rng, sector)
            else:
                (target / name).write_bytes(self._content(inner, rng, sector))

    def _content(self, node, rng, sector):
        old, new = self.synced.get(node, b""), self.current[node]
        if rng is None or old == new:
            return old
        match rng.randrange(3):
            case 0:
                return old
            case 1:
                return new
        length = max(len(old), len(new))
        pair = [one.ljust(length, b"\0") for one in (old, new)]
        mixed = b"".join(
            pair[rng.randrange(2)][at : at + sector] for at in range(0, length, sector)
        )
        return mixed[: rng.choice((len(old), len(new)))]


@dataclass
class PowerDisk:
    """Watches a folder, for as long as its context lasts.

    Attributes:
        snapshots: one before each call that changes a file or brings it to the disk, if they are kept.
        told: goes into each snapshot: what the test knows then.
        calls: name of each call, with the path of the file; of one that syncs another when it is done.
    """

    root: object
    keeps_snapshots: bool = True
    told: object = None
    snapshots: list[Snapshot] = field(default_factory=list)
    calls: list[tuple[str, Path]] = field(default_factory=list)

    def __post_init__(self):
        self._lock = threading.RLock()
        self._folders, self._paths = {}, {}
        self._synced, self._held = {}, {}
        self._real = {name: getattr(os, name) for name in (*NAMES, *CONTENT, *SYNCS)}
        self._root = self._see_folder(os.fspath(self.root))
        self._folders[self._root].synced = 0

    def __enter__(self):
        for name in self._real:
            setattr(os, name, self._watched(name))
        return self

    def __exit__(self, *exc_info):
        for name, real in self._real.items():
            setattr(os, name, real)
        while self._held:
            os.close(self._held.popitem()[1])

    def snapshot(self, call=""):
        """What a power failure would leave now."""
        with self._lock:
            return Snapshot(
                call,
                self._root,
                {node: (list(f.history), f.synced) for node, f in self._folders.items()},
                dict(self._synced),
                {node: self._read(fd) for node, fd in self._held.items()},
                self.told,
            )

    def on_disk(self, suffix):
        """Content of the files whose names end so, as it was last synced."""
        with self._lock:
            return [
                self._synced.get(node, b"")
                for node, path in self._paths.items()
                if path.endswith(suffix)
            ]

    def _watched(self, name):
        real = self._real[name]

        def call(*args, **kwargs):
            node = path = None
            if name in NAMES:
                path = os.fspath(args[0])
                is_ours = path.startswith(f"{self.root}/") and (
                    name != "open" or args[1] & os.O_CREAT
                )
            else:
                node = self._node(args[0])
                is_ours = node in self._held or node in self._folders
            if not is_ours:
                return real(*args, **kwargs)
            with self._lock:
                what = path if path is not None else self._paths.get(node, "")
                self.calls.append((name, Path(what)))
                if self.keeps_snapshots:
                    self.snapshots.append(self.snapshot(f"{name} {Path(what).name}"))
                before = self._sync_begin(node) if name in SYNCS else None
            # What this models need not be waited for.
            result = None if name in SYNCS else real(*args, **kwargs)
            with self._lock:
                if name in SYNCS:
                    self._sync_end(node, before)
                    self.calls.append((f"{name} done", Path(what)))
                elif name in NAMES:
                    self._named(name, args)
            return result

        return call

    def _node(self, fd):
        try:
            return os.fstat(fd).st_ino
        except OSError:
            return None

    def _sync_begin(self, node):
        folder = self._folders.get(node)
        return len(folder.history) - 1 if folder else self._read(self._held[node])

    def _sync_end(self, node, before):
        folder = self._folders.get(node)
        if folder is not None:
            folder.synced = max(folder.synced, before)
        else:
            self._synced[node] = before

    def _named(self, name, args):
        for path in (os.fspath(one) for one in args[:2] if not isinstance(one, int)):
            if not path.startswith(f"{self.root}/"):
                continue
            parent = str(Path(path).parent)
            if name == "mkdir":
                self._see_folder(path)
            with contextlib.suppress(FileNotFoundError):
                self._see_folder(parent)

    def _hold(self, path):
        node = Path(path).stat().st_ino
        if node not in self._held:
            self._held[node] = self._real["open"](path, os.O_RDONLY)
            self._paths[node] = path

    def _see_folder(self, path):
        node = Path(path).stat().st_ino
        names = {}
        for inner in Path(path).iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                names[inner.name] = inner.stat().st_ino
                if inner.is_file():
                    self._hold(str(inner))
        if node not in self._folders:
            self._folders[node] = Folder([names])
            self._paths[node] = path
        elif self._folders[node].history[-1] != names:
            self._folders[node].history.append(names)
        return node

    def _read(self, fd):
        return os.pread(fd, os.fstat(fd).st_size, 0)
