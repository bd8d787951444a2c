"""Maven artifacts, located by the Ivy that PySpark ships.

Ivy knows the layout of repositories and its default one, as for ``spark-submit --packages``, so
no address is written here. The transfer is ours: Ivy's starts large files over after an
interruption, and a slim Java runtime does not know the certificates that this machine trusts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from gazette_platform.embedded.download import Download
from gazette_platform.embedded.jvm import Jvm
from gazette_platform.embedded.layout import pyspark_jars
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_platform.embedded.progress import Step

__all__ = ["MavenArtifact", "fetch_maven", "fetch_maven_jars"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MavenArtifact:
    """One file of a Maven repository, pinned."""

    group: str
    """Group id."""
    artifact: str
    """Artifact id."""
    version: str
    """Exact version."""
    extension: str
    """Type of the file, as ``jar`` or ``tar.gz``."""
    size_bytes: int
    """Exact length."""
    sha256: str
    """Hexadecimal digest."""
    classifier: str = ""
    """Which of several files of the artifact, as ``tests``; empty: the main one."""

    @property
    def file_name(self) -> str:
        """Name of the file in a repository."""
        which = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{which}.{self.extension}"


def fetch_maven(
    artifact: MavenArtifact, target: Path, *, java_home: Path, step: Step, repository: str = ""
) -> Path:
    """Fetch one artifact to `target`, unless it exists. Blocks.

    Args:
        java_home: of a runtime from 17 on, for Ivy.
        repository: root URL of a Maven repository; empty for Ivy's default.

    Raises: SetupError: not found, not reachable, or not the file expected.
    """
    if target.exists():
        return target
    (url,) = _urls_of([artifact], java_home, repository)
    return _download(artifact, url, target, step)


def fetch_maven_jars(
    artifacts: Sequence[MavenArtifact],
    folder: Path,
    *,
    java_home: Path,
    step: Step,
    repository: str = "",
) -> None:
    """Fetch several artifacts into `folder`, each under its own name. Blocks.

    Args and errors: as of `fetch_maven`.
    """
    urls = _urls_of(artifacts, java_home, repository)
    done_bytes = 0
    for artifact, url in zip(artifacts, urls, strict=True):
        _download(artifact, url, folder / artifact.file_name, _Further(step, done_bytes))
        done_bytes += artifact.size_bytes


@final
@dataclass(frozen=True, slots=True)
class _Further:
    """A step that is partly done."""

    step: Step
    done_bytes: int

    def advance_to(self, done_bytes: int) -> None:
        """As of `Step`, for one of several files."""
        self.step.advance_to(self.done_bytes + done_bytes)


def _download(artifact: MavenArtifact, url: str, target: Path, step: Step) -> Path:
    download = Download(target, sha256=artifact.sha256, size_bytes=artifact.size_bytes)
    try:
        return download.run(url, step)
    except SetupError as error:
        raise SetupError(
            f"{error} (another Maven repository can be named by GAZETTE_MAVEN_REPOSITORY)"
        ) from error


def _urls_of(artifacts: Sequence[MavenArtifact], java_home: Path, repository: str) -> list[str]:
    jars = [str(jar) for jar in pyspark_jars().glob("ivy-*.jar")]
    if not jars:
        raise SetupError(f"no Ivy among the jars of PySpark in {pyspark_jars()}: reinstall pyspark")
    with Jvm(java_home=java_home, classpath=jars, options=["-Xmx64m", "-XX:+UseSerialGC"]) as jvm:
        ivy = jvm.org.apache.ivy
        resolver = ivy.plugins.resolver.IBiblioResolver()
        resolver.setName("maven")
        resolver.setM2compatible(True)
        if repository:
            resolver.setRoot(repository.rstrip("/") + "/")
        pattern = resolver.getRoot() + resolver.getPattern()
        return [_url_of(artifact, jvm, pattern) for artifact in artifacts]


def _url_of(artifact: MavenArtifact, jvm: Any, pattern: str) -> str:
    ivy = jvm.org.apache.ivy
    module = ivy.core.module.id.ModuleRevisionId.newInstance(
        artifact.group.replace(".", "/"), artifact.artifact, artifact.version
    )
    more = {"classifier": artifact.classifier} if artifact.classifier else {}
    file = ivy.core.module.descriptor.DefaultArtifact(
        module,
        jvm.java.util.Date(),
        artifact.artifact,
        artifact.extension,
        artifact.extension,
        more,
    )
    return str(ivy.core.IvyPatternHelper.substitute(pattern, file))
