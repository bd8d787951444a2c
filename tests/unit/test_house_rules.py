"""Rules of the house that no linter knows: sizes, names, what may be imported where."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MODULE_LINES_MAX = 800
MODULE_LINES_JUSTIFY = 600
FUNCTION_LINES_MAX = 70
BROKER_MODULES_MAX = 15  # of a folder

# Files and folders of tests/ that may call `sleep`, with the reason.
MAY_SLEEP = {
    "tests/extended/test_mutants.py": "it makes a mutant that hangs",
    "tests/harness.py": "a process that does nothing but tick",
    "tests/fuzz/pulse.py": "it needs only the standard library",
    "tests/benches/": "starters of servers poll until these serve or have ended",
    "tests/e2e/test_fuzz_run.py": "a fault to be found",
    "tests/extended/test_chaos_slow_disk.py": "a program that tests start",
}

# Which modules each contract of import-linter is about. Contracts can name existing ones only, so
# pyproject.toml names those, and this list catches the day when another comes to exist.
_CORE = (
    "errors ops gotemplate protocol yaml_specs etcd keyspace codecs allocator stores fragment client message "
    "serving broker consumer console kafka"
)
CONTRACTS = {
    (
        "lake-is-a-client",
        "source_modules",
    ): "lake hive spark resources assets sensors definitions components",
    ("lake-is-a-client", "forbidden_modules"): "broker consumer allocator keyspace etcd",
    ("core-is-light", "source_modules"): _CORE,
    ("pure", "source_modules"): (
        "allocator.max_flow allocator.solver "
        "broker.append.events broker.append.fsm broker.crash.eviction broker.epochs broker.config broker.spool.verdicts broker.api.gateway_messages "
        "broker.replicate.fsm "
        "cli.gazctl.plan client.read.extents consumer.assignments consumer.recoverylog.fsm consumer.recoverylog.hints consumer.recoverylog.playback consumer.recoverylog.recording consumer.transaction fragment.cover_set kafka.access kafka.records.avro_json kafka.records.bulk_lines kafka.coordinator.group_types kafka.coordinator.groups kafka.coordinator.transactions kafka.wire.batches kafka.records.lines kafka.calls.sequences kafka.calls.topic_configs kafka.topics broker.spool.head_records lake.raw.reconcile lake.engines.duckdb.names lake.reading.arrow_types lake.reading.raw_rows lake.reading.json_columns lake.reading.sifting lake.raw.planning lake.rollups.query_analysis lake.rollups.planning lake.spec.folder lake.spec.formats "
        "lake.typed.planning.rounds lake.typed.evolution lake.typed.planning.row_ranges lake.typed.iceberg_types lake.typed.planning.last_rows lake.typed.rows.parsing lake.typed.rows.placing lake.typed.planning.ranges lake.typed.planning.columnar_sequencer lake.typed.planning.screening lake.typed.planning.state lake.typed.rows.debezium "
        "lake.spec.typed lake.spec.typed.columns lake.spec.typed.json_schema lake.spec.types lake.spec.rules "
        "message.sequencer ops.network protocol.offsets "
        "serving.h2.client_machine serving.h2.endpoint serving.h2.frames serving.h2.hpack serving.h2.server_machine serving.h2.responses serving.h2.stream "
        "sensors.cursor spark.progress spark.options spark.reading stores.answers"
    ),
    ("pb-edges", "allowed_importers"): "protocol client broker consumer console testing",
}

# Importable packages of the extras; the core must work without any of them.
HEAVY = "dagster dagster_pyspark dagster_webserver pyspark py4j pyiceberg hive_metastore pyarrow sqlglot trino boto3 botocore azure google.auth google.cloud obstore uv fastavro duckdb sqlalchemy psycopg pymysql kio aiokafka"


@cache
def tracked(pattern: str = "") -> tuple[Path, ...]:
    """Files of the repository, new ones included, that end with `pattern`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = (ROOT / line for line in listed.stdout.splitlines() if line.endswith(pattern))
    return tuple(sorted(path for path in files if path.is_file()))


def python_files(*folders: str) -> list[Path]:
    """Hand-written Python below `folders` (all when none is named)."""
    return [
        path
        for path in tracked(".py")
        if not re.search(r"_pb2(_grpc)?\.py$", path.name)
        and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Facts:
    """What the rules ask of a file. Each file is parsed once, and its tree is not kept."""

    docstring: str
    """Of the module."""
    docstrings: tuple[str, ...]
    """Of the module and of its classes and functions."""
    functions: tuple[tuple[int, str, int], ...]
    """Line, name and length of each."""
    imports: tuple[str, ...]
    lists_names: bool
    imports_names: bool


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a module; their expressions are left out, for they are many."""
    left: list[ast.AST] = [*tree.body]
    while left:
        node = left.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            found = getattr(node, field, ())
            left += found if isinstance(found, list) else ()


@cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    docstrings, functions, imports = [ast.get_docstring(tree) or ""], [], []
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.lineno, node.name, lines_of(node)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstrings.append(ast.get_docstring(node) or "")
        if isinstance(node, ast.ImportFrom):
            imports.append(node.module or "")
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
    assigned = [target for n in tree.body if isinstance(n, ast.Assign) for target in n.targets]
    return Facts(
        docstring=docstrings[0],
        docstrings=tuple(docstrings),
        functions=tuple(functions),
        imports=tuple(imports),
        lists_names=any(isinstance(one, ast.Name) and one.id == "__all__" for one in assigned),
        imports_names=any(
            isinstance(n, ast.ImportFrom) and n.module != "__future__" for n in tree.body
        ),
    )


def exists(module: str) -> bool:
    base = ROOT / "gazette_platform" / module.replace(".", "/")
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def test_no_module_is_too_long():
    too_long, unexplained = [], []
    for path in python_files():
        lines = path.read_text().count("\n")
        if lines > MODULE_LINES_MAX:
            too_long.append(f"{name_of(path)}: {lines}")
        elif lines > MODULE_LINES_JUSTIFY and "Long because" not in facts_of(path).docstring:
            unexplained.append(f"{name_of(path)}: {lines}")
    assert not too_long, f"over {MODULE_LINES_MAX} lines: split by concept"
    assert not unexplained, (
        'over 600 lines: say "Long because ..." in the module docstring, or split'
    )


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body. Signature and docstring are not counted: options of a command are many."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_too_long():
    found = []
    for path in python_files():
        for line, name, lines in facts_of(path).functions:
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{name_of(path)}:{line} {name}: {lines}")
    assert not found, (
        f"functions over {FUNCTION_LINES_MAX} lines: keep the branches, move the leaves out"
    )


def test_packages_list_the_names_that_they_reexport():
    missing = [
        name_of(path)
        for path in python_files("gazette_platform")
        if path.name == "__init__.py"
        and facts_of(path).imports_names
        and not facts_of(path).lists_names
    ]
    assert not missing, "packages without __all__"


def test_every_package_says_what_it_is():
    bare = [
        name_of(path)
        for path in python_files("gazette_platform")
        if path.name == "__init__.py" and not facts_of(path).docstring
    ]
    assert not bare, "a package opens with its nouns, its guarantee, its cost"


def entries_on_the_line(docstring: str) -> list[str]:
    """Lines that name a list of arguments or attributes, and begin or end something else as well."""
    return re.findall(
        r"^.*\b(?:Args|Attributes): *\S.*$|^.*\S +(?:Args|Attributes): *$", docstring, re.MULTILINE
    )


@pytest.mark.parametrize(
    "docstring",
    [
        "Sum.\n\n    Args: left: one.\n",
        "Sum. Args: left: one.",
        "Sum. Attributes:\n        left: one.",
    ],
)
def test_entries_on_the_line_are_found(docstring):
    assert entries_on_the_line(docstring)


def test_arguments_are_reported_one_a_line():
    found = [
        f"{name_of(path)}: {line}"
        for path in python_files()
        for docstring in facts_of(path).docstrings
        if "Args:" in docstring or "Attributes:" in docstring
        for line in entries_on_the_line(docstring)
    ]
    assert not found, "`Args:` and `Attributes:` stand alone, with one entry a line below them"


def test_no_wing_of_the_broker_is_crowded():
    broker = ROOT / "gazette_platform" / "broker"
    paths = [path for path in python_files("gazette_platform") if path.is_relative_to(broker)]
    counts = Counter(name_of(path.parent) for path in paths if path.name != "__init__.py")
    assert max(counts.values()) <= BROKER_MODULES_MAX, counts


def test_no_module_is_called_utils():
    banned = {"utils", "util", "helpers", "misc", "common"}
    found = [
        name_of(path)
        for path in python_files()
        if path.stem in banned or path.parent.name in banned
    ]
    assert not found, "name a module for its concept"


def test_changelog_fragments_have_a_name_and_a_kind():
    kinds = {each["directory"] for each in PROJECT["tool"]["towncrier"]["type"]}
    rule = re.compile(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md")
    names = {p.name for p in tracked(".md") if p.parent == ROOT / "changelog.d"} - {"README.md"}
    assert not {name for name in names if not rule.fullmatch(name)}, "see changelog.d/README.md"
    documented = (ROOT / "changelog.d/README.md").read_text()
    assert kinds == set(re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE))


def test_every_decision_is_listed_in_order():
    folder = ROOT / "docs" / "adr"
    listed = re.findall(
        r"\| (\d+) \| \[.+\]\((\d{4}-.+\.md)\) \|", (folder / "README.md").read_text()
    )
    assert [name for _, name in listed] == sorted(path.name for path in folder.glob("0*.md"))
    for number, name in listed:
        text = (folder / name).read_text()
        assert text.startswith(f"# {number}. ")
        assert re.findall(r"^## (.+)", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ]


def test_hive_metastore_folder_holds_no_python():
    # PyIceberg installs a package of that name; one of ours would shadow it.
    assert not [name_of(path) for path in python_files("hive_metastore")]


def test_installed_hive_metastore_is_the_thrift_client():
    probe = "import hive_metastore.ThriftHiveMetastore as t; print(t.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "site-packages" in found.stdout


def test_tree_names_no_place_of_one_machine():
    # Spelled in pieces, or this file would be the first find.
    places = [f"{ROOT}/", f"{Path.home()}/"]
    homes = ["/" + name + "/" for name in ("home", "Users")]
    alternatives = "|".join([*map(re.escape, places), "/(?:home|Users)/" + "[a-z]"])
    pattern = re.compile(rf"(?<![\w/])(?:{alternatives})")
    found = []
    for path in tracked():
        if path.name == "uv.lock" or path.suffix in {".gz", ".zip", ".png", ".jar"}:
            continue
        text = path.read_text(errors="replace")
        if not any(begin in text for begin in (*places, *homes)):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert not found, "paths of a machine in the tree"


def test_lock_file_names_one_index():
    """A mirror of whoever locked last must not slip in; `tools/install` compares with this one."""
    indexes = set(re.findall(r'registry = "([^"]+)"', (ROOT / "uv.lock").read_text()))
    assert len(indexes) == 1


@pytest.mark.parametrize("command", sorted(PROJECT["project"]["scripts"]))
def test_script_can_be_imported_and_called(command):
    module, _, attribute = PROJECT["project"]["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_core_needs_no_extra():
    core = [name for name in _CORE.split() if exists(name)]
    modules = [f"gazette_platform.{name}" for name in core]
    modules += [target.partition(":")[0] for target in PROJECT["project"]["scripts"].values()]
    # Settings of Kafka, and commands that ask brokers for topics.
    modules += ["gazette_platform.kafka.config", "gazette_platform.cli.gazctl.kafka"]
    program = f"""
import importlib, sys
heavy = set({HEAVY.split()!r})

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in heavy or name.partition(".")[0] in heavy:
            raise ImportError(f"{{name}} belongs to an extra")

sys.meta_path.insert(0, Blocker())
for name in {modules!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("contract", "field"), sorted(CONTRACTS))
def test_contract_names_every_module_that_exists(contract, field):
    wanted = {f"gazette_platform.{m}" for m in CONTRACTS[contract, field].split() if exists(m)}
    configured = {c["id"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}
    named = set(configured.get(contract, {}).get(field, []))
    assert {name for name in named if name.startswith("gazette_platform")} == wanted


def test_no_private_module_of_dagster_is_imported():
    found = [
        (str(path.relative_to(ROOT)), module)
        for path in tracked(".py")
        for module in facts_of(path).imports
        if module.split(".")[0].startswith("dagster") and "._" in module
    ]
    assert not found


def test_modules_that_call_themselves_pure_are_held_to_it():
    told = {
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in python_files("gazette_platform")
        if re.search(r"(?i)\bpure(ly)?\b", facts_of(path).docstring)
    }
    configured = {c["id"]: c for c in PROJECT["tool"]["importlinter"]["contracts"]}
    assert told
    assert told <= set(configured["pure"]["source_modules"])


def test_test_files_have_unique_names():
    # --import-mode=importlib allows equal names, people who read a report do not.
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert not {name for name in names if names.count(name) > 1}


def test_tests_wait_for_what_they_expect_and_not_for_a_time():
    """A time is too short on a busy machine, and too long on all others: see testing/waiting."""
    found = {
        name_of(path)
        for path in python_files("tests")
        if re.search(r"(?<!def )\bsleep\(", path.read_text())
    } - {name_of(Path(__file__))}
    assert sorted(name for name in found if not name.startswith(tuple(MAY_SLEEP))) == []
    idle = [start for start in MAY_SLEEP if not any(name.startswith(start) for name in found)]
    assert idle == [], "entries of files that sleep no more"


def test_mutants_are_of_modules_tests_and_lines_that_exist():
    """One that was renamed would be broken no more, and no one would notice."""
    mutants = tomllib.loads((ROOT / "tests/mutants.toml").read_text())
    package = ROOT / "gazette_platform"
    files = [package / name for name in mutants["tests"]]
    files += [ROOT / name for tests in mutants["tests"].values() for name in tests]
    assert [path for path in files if not path.is_file()] == []
    gone = [
        one["line"]
        for one in mutants["survivor"]
        if one["line"] not in (package / one["module"]).read_text()
    ]
    assert gone == []


def test_safety_devices_name_text_and_tests_that_exist():
    """`make mutants DEVICES=1` fails otherwise, and takes minutes to do so."""
    tiers = {"unit", "property", "scenario", "integration", "platform"}
    for device in tomllib.loads((ROOT / "tests/safety_devices.toml").read_text())["device"]:
        source = (ROOT / "gazette_platform" / device["module"]).read_text()
        assert source.count(device["text"]) == 1, device["name"]
        for path, _, name in (test.partition("::") for test in device["tests"]):
            assert path.split("/")[1] in tiers, f"make test does not run {path}"
            assert f"def {name}" in (ROOT / path).read_text()
