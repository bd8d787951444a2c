"""`tools/run_tests.py`: no failure of a test, or of a part, ends with exit code 0."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
CRASHES = "import os\ndef test_crashes(): os._exit(3)\n"
DOES_NOT_IMPORT = "import no_such_module\n"
FAILS_ONCE = """
from pathlib import Path
import pytest
@pytest.mark.parametrize("n", range(COUNT))
def test_fails_once(n):
    mark = Path(f"ran-{n}")
    ran = mark.exists()
    mark.touch()
    assert ran
"""
PROGRAM = """
import sys; sys.path.insert(0, {tools!r})
from pathlib import Path
from run_tests import Part, run_tier
parts = tuple(Part(name=name, folders=(name,), is_beside=name == "modules") for name in {names!r})
sys.exit(run_tier("some", parts, [], root=Path({root!r}), may_look_again={again!r}, slowest=2))
"""


@pytest.fixture
def run(tmp_path):
    """Run parts, each of one module of tests. Return the exit code and the lines printed."""

    def run(again=False, **texts):
        shutil.copy(ROOT / "tests/benches/outcomes.py", tmp_path)
        (tmp_path / "conftest.py").write_text('pytest_plugins = ("outcomes",)')
        (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
        for name, text in texts.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / f"test_{name}.py").write_text(text)
        program = PROGRAM.format(
            tools=str(ROOT / "tools"), names=list(texts), root=str(tmp_path), again=again
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    return run


def test_passing_parts_exit_with_zero(run):
    code, lines = run(modules=PASSES, servers=PASSES)
    assert (code, lines[-1]) == (0, "some: 2 passed, 0 failed, 0 skipped")


@pytest.mark.parametrize("text", [FAILS, CRASHES, DOES_NOT_IMPORT])
def test_failed_part_fails_the_run(run, text):
    code, lines = run(modules=PASSES, servers=text, again=True)
    assert (code, lines[-1]) == (1, "some: 1 passed, 1 failed, 0 skipped")
    assert any(line.startswith("failed: ") for line in lines)


@pytest.mark.parametrize(
    ("part", "count", "code"), [("servers", 3, 0), ("servers", 4, 1), ("modules", 1, 1)]
)
def test_three_flaky_server_tests_pass_four_fail(run, part, count, code):
    found, lines = run(**{part: FAILS_ONCE.replace("COUNT", str(count))}, again=True)
    assert found == code
    told = [line for line in lines if line.startswith("flaky: ") and "passed alone" in line]
    assert len(told) == (0 if part == "modules" else count)


def test_run_without_any_test_fails(run):
    assert run(modules="")[0] == 5
