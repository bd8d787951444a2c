"""The scripts that make calls: each says in one message what is missing and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE_PATH = "/usr/bin:/bin"


def run(*command, cwd=ROOT, **env):
    kept = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | {"PATH": BASE_PATH} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def checkout(tmp_path):
    """What tools/install reads, without an environment of its own."""
    for name in ("pyproject.toml", "uv.lock", "tools/install"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def fake_python(folder: Path, body: str) -> Path:
    path = folder / "python-under-test"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_install_without_a_fitting_python_says_so(checkout):
    old = fake_python(checkout, "exit 1")
    done = run("tools/install", cwd=checkout, PYTHON=str(old))
    assert done.returncode == 1
    assert "no Python >= 3.11 found" in done.stderr
    assert "make install PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_install_without_the_venv_module_says_so(checkout):
    bare = fake_python(checkout, 'case "$2" in *ensurepip*) exit 1;; esac')
    done = run("tools/install", cwd=checkout, PYTHON=str(bare))
    assert done.returncode == 1
    assert "has no venv module" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not (checkout / ".bootstrap").exists()


def test_missing_programs_get_one_line_of_apt_get(tmp_path):
    present = (
        "etcd",
        "go",
        "javac",
        "npm",
        "openssl",
        "initdb",
        "mariadbd",
        "kcat",
        "promtool",
        "buildah",
        "debootstrap",
        "strip",
        "ps",
    )
    for name in present:
        (tmp_path / name).symlink_to(sys.executable)
    done = run(sys.executable, "tools/check_needs.py", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "  chromium: tests that open the Dagster UI (or set GAZETTE_CHROMIUM)\n" in done.stderr
    assert "\n  apt-get install --no-install-recommends chromium strace\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_program_named_by_variable_is_accepted(tmp_path):
    for name in (
        "go",
        "javac",
        "kcat",
        "promtool",
        "buildah",
        "debootstrap",
        "strip",
        "ps",
        "strace",
    ):
        (tmp_path / name).symlink_to(sys.executable)
    variables = (
        "AZURITE",
        "CHROMIUM",
        "ETCD",
        "MARIADB",
        "OPENSSL",
        "POSTGRES",
    )
    named = {f"GAZETTE_{name}": sys.executable for name in variables}
    done = run(sys.executable, "tools/check_needs.py", PATH=str(tmp_path), **named)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_named_by_variable_must_exist(tmp_path):
    done = run(sys.executable, "tools/check_needs.py", GAZETTE_CHROMIUM=str(tmp_path / "nowhere"))
    assert done.returncode == 1


def test_stale_generated_code_is_found(tmp_path):
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    generated = "gazette_platform/protocol/pb"
    shutil.copytree(ROOT / generated, tmp_path / generated)
    fresh = run(sys.executable, "tools/gen.py", "--check", cwd=tmp_path)
    assert (fresh.returncode, fresh.stdout) == (0, "")
    stub = tmp_path / generated / "protocol_pb2.pyi"
    stub.write_text(stub.read_text().replace("OFFSET_NOT_YET_AVAILABLE", "OFFSET_LATER"))
    stale = run(sys.executable, "tools/gen.py", "--check", cwd=tmp_path)
    assert stale.returncode == 1
    assert "-    OFFSET_LATER" in stale.stdout
    assert "run `make gen`" in stale.stderr


def test_make_help_lists_every_target():
    done = run("make", "help")
    assert done.returncode == 0
    wanted = "help install dev demo fmt lint types test test-fast test-all bench gen gen-check docs clean"
    for target in wanted.split():
        assert f"\033[1m{target} " in done.stdout, target
