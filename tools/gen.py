"""Generates the protobuf and gRPC code of proto/ beside the package that imports it, and that of examples/.

python tools/gen.py          writes gazette_platform/**/pb/*_pb2*.py[i], and those of examples beside their .proto
python tools/gen.py --check  generates elsewhere and fails, with the diff, when the tree differs

The path of a .proto below proto/, or that of an example, is its import path, so protoc's output needs no rewriting.
"""

from __future__ import annotations

import difflib
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
EXAMPLES = ROOT / "examples"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(out: Path) -> list[Path]:
    """Runs protoc over every .proto. Returns the files written, relative to `out`."""
    sources = sorted(str(p) for top in (PROTO, EXAMPLES) for p in top.rglob("*.proto"))
    options = [f"-I{PROTO}", f"-I{ROOT}", f"-I{WELL_KNOWN}"]
    options += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", *options, *sources]) != 0:
        raise SystemExit("gen: protoc failed (see above)")
    return sorted(p.relative_to(out) for p in out.rglob("*_pb2*") if p.is_file())


def differences(fresh: Path, names: list[Path]) -> list[str]:
    """Unified diff lines between the tree and what was generated, files missing or left over included."""
    lines: list[str] = []
    committed = {
        p.relative_to(ROOT)
        for top in (ROOT / "gazette_platform", EXAMPLES)
        for p in top.rglob("*_pb2*.py*")
        if p.suffix in {".py", ".pyi"}
    }
    for name in sorted(committed | set(names)):
        old, new = ROOT / name, fresh / name
        before = old.read_text().splitlines() if old.exists() else []
        after = new.read_text().splitlines() if new.exists() else []
        lines += difflib.unified_diff(
            before, after, f"tree/{name}", f"generated/{name}", lineterm=""
        )
    return lines


def main(arguments: list[str]) -> int:
    """Exit code: 0 done or equal, 1 the tree is stale."""
    with tempfile.TemporaryDirectory(prefix="gazette-gen-") as folder:
        fresh = Path(folder)
        names = generate(fresh)
        if arguments == ["--check"]:
            lines = differences(fresh, names)
            if lines:
                print("\n".join(lines[:80]))
                print(
                    "gen-check: generated code is stale; run `make gen` and commit the result",
                    file=sys.stderr,
                )
            return 1 if lines else 0
        for name in names:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, ROOT / name)
        print(f"gen: {len(names)} files")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
