"""Where servers are required, what is missing fails its tests instead of skipping them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
BENCHES = CONFTEST.parent / "benches"
MODULES = {
    "test_library.py": """
        import pytest

        pytest.importorskip("no_such_library")

        def test_whole_module(): ...
    """,
    "test_others.py": """
        import pytest

        def test_library():
            pytest.importorskip("no_such_library")

        @pytest.mark.etcd
        def test_server():
            pytest.skip("no server")

        def test_machine():
            pytest.skip("not root")
    """,
}


@pytest.mark.parametrize(
    ("required", "expected"),
    [("0", "4 skipped"), ("1", "2 failed, 1 skipped, 1 error")],
)
def test_what_is_missing_fails_where_it_is_required(tmp_path, required, expected):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text.replace("\n        ", "\n"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tmp_path), "--continue-on-collection-errors", str(tmp_path)]
    environment = {**os.environ, "GAZETTE_REQUIRE_SERVERS": required, "PYTHONPATH": str(BENCHES)}
    run = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    counts = run.stdout.splitlines()[-1].partition(" in ")[0]
    assert ", ".join(each for each in counts.split(", ") if "warning" not in each) == expected
