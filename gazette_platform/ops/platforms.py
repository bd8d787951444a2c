"""Which platform of this machine, and which broker, a command uses.

The first of these that names one wins:

1. a flag: ``--root`` of `gazette`, ``--broker.address`` of `gazctl`, the option ``broker`` of Spark's source;
2. gazctl.ini, for `gazctl`;
3. variables: BROKER_ADDRESS, then GAZETTE_BROKER_ADDRESS, then the file that GAZETTE_ENDPOINTS names;
4. the platform in ``./.gazette``, if that folder exists;
5. of the platforms that `gazette up` has started for this user, the one started last that still runs;
6. a broker at http://localhost:8080.

Flags are for the caller to look at first, and `apply_ini` turns gazctl.ini into variables. `complete` does the rest. A command
that any of 1 to 3 applies to never looks for a platform, so it cannot mix addresses of two.

A platform that runs has ``running.json`` in its folder, with the variables that `gazette env` prints. The user's state folder has
one small file for each folder that a platform was started in.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.process import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


DEFAULT_BROKER: Final = "http://localhost:8080"

_LOCAL: Final = ".gazette"
_RUNNING: Final = "running.json"
_REMEMBERED_MAX: Final = 20
# A command for which one of these is set uses what they name, and no platform that happens to run.
_NAMING: Final = (
    "GAZETTE_ENDPOINTS",
    "BROKER_ADDRESS",
    "GAZETTE_BROKER_ADDRESS",
    "GAZETTE_METASTORE_URI",
    "GAZETTE_TRINO_URI",
)
# Set by a user, they stay as they are. Those of other programs, such as JAVA_HOME, are the platform's.
_OURS: Final = ("GAZETTE_", "BROKER_", "ETCD_")
# Of a Spark on this machine only.
_LOCAL_SPARK: Final = ("PYSPARK_PYTHON", "SPARK_LOCAL_IP")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The platform that a command uses."""

    root: Path | None = None
    """Its folder; None if no platform was ever started."""
    is_running: bool = False
    others: tuple[Path, ...] = ()
    """Folders of other platforms that run."""
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What `gazette env` prints; empty until all of its servers are ready."""

    def note(self) -> str:
        """Return a line for users: ``using the platform in ~/p (another one runs in ~/q)``."""
        more = "; ".join(short(root) for root in self.others)
        note = f" ({'others run' if len(self.others) > 1 else 'another one runs'} in {more})"
        return f"using the platform in {short(self.root or Path())}{note if more else ''}"


def short(path: Path) -> str:
    """Return a path as a user would type it: with ``~`` for the home folder."""
    home = _home(os.environ)
    return (
        f"~/{path.relative_to(home)}"
        if path.is_relative_to(home) and home != Path("/")
        else str(path)
    )


def choose(
    *,
    named: Path | None = None,
    local: Path | None = None,
    remembered: Sequence[Path] = (),
    running: Collection[Path] = (),
) -> Chosen:
    """Choose the platform of a command. Pure; see the module for the order.

    Args:
        named: folder that a flag or variable names.
        local: ``./.gazette``, if it exists.
        remembered: folders that platforms were started in, the last one first.
        running: those folders, of all the above, in which one runs now.
    """
    root = named or local
    if root is None:
        alive = [each for each in remembered if each in running]
        root = next(iter(alive or remembered), None)
    known = dict.fromkeys([*([local] if local else []), *remembered])
    others = tuple(each for each in known if each in running and each != root)
    return Chosen(root, root in running, others)


def find(
    environment: Mapping[str, str], *, named: Path | None = None, here: Path | None = None
) -> Chosen:
    """Look for the platform of a command on this machine.

    Args:
        environment: as `os.environ`.
        named: folder that a flag names.
        here: the working folder; default: this process's.
    """
    named = named or _named(environment)
    local = _local(here)
    remembered = _remembered(environment)
    roots = dict.fromkeys(filter(None, [named, local, *remembered]))
    running = {root: found for root in roots if (found := _running(root)) is not None}
    chosen = choose(named=named, local=local, remembered=remembered, running=running)
    if chosen.root not in running:
        return chosen
    return Chosen(chosen.root, True, chosen.others, running[chosen.root])


def default_root(environment: Mapping[str, str], here: Path | None = None) -> Path:
    """Return the folder of `gazette up` without ``--root``: GAZETTE_ENDPOINTS' one, ``./.gazette`` if it exists, else the user's."""
    return (
        _named(environment)
        or _local(here)
        or _user_folder(environment, "XDG_DATA_HOME", ".local/share")
    )


def broker_of(environment: Mapping[str, str]) -> str:
    """Return the address that variables give, of one broker or several with commas; empty: they give none."""
    named = environment.get("BROKER_ADDRESS") or environment.get("GAZETTE_BROKER_ADDRESS")
    if named:
        return named
    endpoints = environment.get("GAZETTE_ENDPOINTS", "")
    raw = _read(Path(endpoints)) if endpoints else {}
    return ",".join(map(str, raw.get("brokers") or ())) or str(raw.get("broker") or "")


def adopted(
    environment: Mapping[str, str],
    *,
    say: Callable[[str], None] | None = None,
    here: Path | None = None,
) -> dict[str, str]:
    """Return the variables of the platform that runs, as `gazette env` prints them; none if `environment` names one or a broker.

    Args:
        environment: as `os.environ`; those of its variables that are ours win over the platform's.
        say: receives a note that says which platform is used; default: `say_once`.
        here: the working folder; default: this process's.
    """
    if any(environment.get(name) for name in _NAMING):
        return {}
    chosen = find(environment, here=here)
    if not chosen.variables:
        return {}
    (say or say_once)(chosen.note())
    spark = environment.get("GAZETTE_SPARK_MASTER", "local")
    return {
        name: value
        for name, value in chosen.variables.items()
        if not (name.startswith(_OURS) and environment.get(name))
        and not (name in _LOCAL_SPARK and not spark.startswith("local"))
    }


def complete(
    environment: Mapping[str, str], *, say: Callable[[str], None] | None = None
) -> dict[str, str]:
    """Return `environment` with the platform that runs, if it names none, and with BROKER_ADDRESS, if any broker is known."""
    found = {**environment, **adopted(environment, say=say)}
    broker = broker_of(found)
    return {**found, "BROKER_ADDRESS": broker} if broker else found


def advice(environment: Mapping[str, str], here: Path | None = None) -> str:
    """Return what a user may do who has reached no broker at the default address."""
    chosen = find(environment, here=here)
    if chosen.root is None:
        what = "no platform runs: start one with `gazette up --light`"
    elif chosen.is_running:
        what = f"the platform in {short(chosen.root)} is still starting: see `gazette status`"
    else:
        is_default = chosen.root == default_root(environment, here)
        flag = "" if is_default else f" --root {short(chosen.root)}"
        what = (
            f"the platform in {short(chosen.root)} is not running: start it with `gazette up{flag}`"
        )
    return f"{what}, or name a broker with --broker.address"


def publish(root: Path, variables: Mapping[str, str]) -> None:
    """Say in `root` that its platform runs in this process.

    Args:
        root: the folder of the platform.
        variables: those of `gazette env`; empty while it starts.
    """
    me = ProcessId.of(os.getpid())
    raw = {"pid": me.pid, "started": me.started, "place": _place(root), "variables": variables}
    _write(root / _RUNNING, raw)


def withdraw(root: Path) -> None:
    """Take back what `publish` has said."""
    (root / _RUNNING).unlink(missing_ok=True)


def remember(root: Path, environment: Mapping[str, str]) -> None:
    """Remember that a platform is started in `root`, for commands without one.

    Raises: OSError: the user's state folder cannot be written.
    """
    folder = _state_folder(environment)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = _entries(environment)
    for stale in (
        path for n, (_, at, path) in enumerate(found) if n >= _REMEMBERED_MAX or not at.is_dir()
    ):
        stale.unlink(missing_ok=True)
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    _write(folder / f"{name}.json", {"root": str(root), "at_s": SystemClock.unix_s()})


def say_once(text: str) -> None:
    """Write a line to stderr, the first time that it is said in this process."""
    if text not in _said:
        _said.add(text)
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


_said: set[str] = set()


def _named(environment: Mapping[str, str]) -> Path | None:
    endpoints = environment.get("GAZETTE_ENDPOINTS", "")
    return Path(endpoints).resolve().parent if endpoints else None


def _local(here: Path | None) -> Path | None:
    folder = (here or Path()).absolute() / _LOCAL
    return folder.resolve() if folder.is_dir() else None


def _user_folder(environment: Mapping[str, str], variable: str, default: str) -> Path:
    base = Path(environment.get(variable, ""))
    # By the XDG specification a relative path counts as not set.
    return (base if base.is_absolute() else _home(environment) / default) / "gazette"


def _home(environment: Mapping[str, str]) -> Path:
    # Unlike pathlib's, this one does not raise where a user has no home, as in many containers.
    return Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111


def _state_folder(environment: Mapping[str, str]) -> Path:
    return _user_folder(environment, "XDG_STATE_HOME", ".local/state") / "platforms"


def _entries(environment: Mapping[str, str]) -> list[tuple[float, Path, Path]]:
    """When a platform was started, its folder, and the file that says so; the last one first."""
    files = sorted(_state_folder(environment).glob("*.json"))
    read = [(_read(path), path) for path in files]
    found = [
        (float(raw["at_s"]), Path(raw["root"]), path)
        for raw, path in read
        if isinstance(raw.get("root"), str) and isinstance(raw.get("at_s"), int | float)
    ]
    return sorted(found, reverse=True)


def _remembered(environment: Mapping[str, str]) -> list[Path]:
    return [root for _, root, _ in _entries(environment) if root.is_dir()]


def _running(root: Path) -> Mapping[str, str] | None:
    """Return the variables of the platform that runs in a folder; None: none does."""
    raw = _read(root / _RUNNING)
    pid, started, variables = (raw.get(name) for name in ("pid", "started", "variables"))
    # A copy of the folder has the file too.
    if not raw or raw.get("place") != _place(root) or not isinstance(variables, dict):
        return None
    return variables if ProcessId(int(pid or 0), int(started or 0)).is_alive() else None


def _place(folder: Path) -> str:
    info = folder.stat()
    return f"{info.st_dev}:{info.st_ino}"


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _write(path: Path, raw: Mapping[str, Any]) -> None:
    """Write a file for its owner's eyes alone, by a rename: the variables may hold keys of a store."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(raw, indent=2) + "\n", "utf-8")
    temporary.replace(path)
