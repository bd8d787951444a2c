"""The former version of the platform: its wheel, in an environment of its own, from the repository's history."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parents[2]
REF_FILE = ROOT / "tests" / "upgrade_from"
VARIABLE = "GAZETTE_TEST_UPGRADE_FROM"


@dataclass(frozen=True, slots=True)
class Version:
    """How to start programs of one version."""

    name: str
    python: tuple[str, ...]

    @property
    def gazette(self):
        return (*self.python, "-m", "gazette_platform.cli.gazette")

    @property
    def gazctl(self):
        return (*self.python, "-m", "gazette_platform.cli.gazctl")

    @property
    def summer(self):
        return (*self.python, "-m", "examples.stream_sum.summer")


PRESENT = Version("present", (sys.executable,))


def former_ref():
    """The git ref of the former version."""
    lines = REF_FILE.read_text().splitlines()
    (ref,) = [line for line in lines if line and not line.startswith("#")]
    return os.environ.get(VARIABLE) or ref


def run(*command, cwd):
    """Run to the end. Returns: what it printed, as bytes; fails with all of it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]!r}\n{done.stderr.decode()}"
    return done.stdout


def install_former(folder, *extras):
    """Build the former version's wheel, and install it with its own locked dependencies and these extras.

    The example stream-sum comes from the same commit.
    """
    ref = former_ref()
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], cwd=ROOT, check=False
    )
    assert found.returncode == 0, (
        f"this clone does not have the commit {ref}, which {REF_FILE.name} names: run `git fetch --unshallow --tags`, "
        f"or set {VARIABLE} to a ref that it has"
    )
    source, venv, uv = folder / "source", folder / "venv", find_uv_bin()
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    run("git", "archive", "--output", archive, ref, cwd=ROOT)
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    run(uv, "build", "--wheel", "--out-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    locked = folder / "requirements.txt"
    run(
        *(uv, "export", "--frozen", "--no-dev", "--no-emit-project"),
        *(f"--extra={extra}" for extra in extras),
        *("--output-file", locked),
        cwd=source,
    )
    run(uv, "venv", "--python", sys.executable, venv, cwd=folder)
    python = venv / "bin" / "python"
    install = (uv, "pip", "install", "--python", python)
    run(*install, "--require-hashes", "--requirement", locked, cwd=folder)
    run(*install, "--no-deps", wheel, cwd=folder)
    examples = folder / "app"
    examples.mkdir()
    (source / "examples").rename(examples / "examples")
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "examples.pth").write_text(f"{examples}\n")
    # -I: else PYTHONPATH and the working directory would lead it to the present version.
    isolated = (str(python), "-I")
    place = run(*isolated, "-c", "import gazette_platform as g; print(g.__file__)", cwd=ROOT)
    assert Path(place.decode().strip()).is_relative_to(packages)
    return Version("former", isolated)
