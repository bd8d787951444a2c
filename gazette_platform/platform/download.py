"""Files from the net, each checked against a length and a SHA-256; and how far they are, shown to a person.

Artifacts of Maven are located by the Ivy that PySpark ships. Ivy knows the layout of repositories and its default one,
as for ``spark-submit --packages``, so no address is written here. The transfer is ours: Ivy's starts large files over
after an interruption, and a slim Java runtime does not know the certificates that this machine trusts.
"""

from __future__ import annotations

import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gazette_platform.errors import SetupError
from gazette_platform.ops.faults import backoff_s
from gazette_platform.platform.component import Jvm
from gazette_platform.platform.layout import pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_MEGABYTE = 1_000_000
# A log of a download holds about ten lines, however large it is.
_PLAIN_STEP_PERCENT = 10


class Step(Protocol):
    """Receives how far a step is."""

    def advance_to(self, done_bytes: int) -> None:
        """`done_bytes` of the total have come."""
        ...


class _QuietStep:
    def advance_to(self, done_bytes: int) -> None:
        """Report to no one."""


def quiet_step() -> Step:
    """A step that shows nothing."""
    return _QuietStep()


class _BarStep:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance_to(self, done_bytes: int) -> None:
        self._progress.update(self._task, completed=done_bytes)


class _PlainStep:
    def __init__(self, title: str, total_bytes: int, stream: TextIO) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._stream = stream
        self._next_percent = _PLAIN_STEP_PERCENT

    def advance_to(self, done_bytes: int) -> None:
        if self._total_bytes <= 0:
            return
        percent = done_bytes * 100 // self._total_bytes
        if percent < self._next_percent:
            return
        self._next_percent = (percent // _PLAIN_STEP_PERCENT + 1) * _PLAIN_STEP_PERCENT
        done, total = done_bytes // _MEGABYTE, self._total_bytes // _MEGABYTE
        print(f"{self._title}: {percent}% ({done} of {total} MB)", file=self._stream, flush=True)


@contextmanager
def show_step(title: str, total_bytes: int = 0, *, stream: TextIO | None = None) -> Iterator[Step]:
    """Show the step `title` while the block runs.

    Args:
        total_bytes: 0 if unknown: then there is a spinner instead of a bar.
        stream: standard error by default, so that output can be piped.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        print(f"{title} …", file=stream, flush=True)
        yield _PlainStep(title, total_bytes, stream)
        return
    sized = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *(sized if total_bytes else ()))
    with Progress(*columns, console=Console(file=stream), transient=False) as progress:
        task = progress.add_task(title, total=total_bytes or None)
        yield _BarStep(progress, task)
        if not total_bytes:
            progress.update(task, total=1, completed=1)


_BLOCK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 60.0
_TRIES_MAX = 6
_HTTP_PARTIAL = 206
_HTTP_RANGE_NOT_SATISFIABLE = 416


@final
class Download:
    """A file to fetch to `target`.

    What has arrived is kept beside the target as ``<name>.part``: a download that was cut off, by
    the network or by the end of the process, continues there. The target appears only complete
    and with the right digest, by a rename.

    Args:
        target: path of the result.
        sha256: hexadecimal.
        size_bytes: exact length.
    """

    def __init__(
        self,
        target: Path,
        *,
        sha256: str,
        size_bytes: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._sleep = sleep

    def run(self, url: str, step: Step | None = None) -> Path:
        """Fetch from `url` unless the target exists. Blocks.

        Returns: the target.
        Raises: SetupError: the server cannot be reached, refuses, or serves something else.
        """
        if self.target.exists():
            return self.target
        if not url.startswith(("http://", "https://")):
            raise SetupError(f"cannot download {url}: only http and https are supported")
        step = step or quiet_step()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._fetch_all(url, step)
        self._check(url)
        self.part.rename(self.target)
        return self.target

    def _fetch_all(self, url: str, step: Step) -> None:
        failure: Exception | None = None
        for attempt in range(_TRIES_MAX):
            if attempt:
                self._sleep(backoff_s(attempt - 1))
            try:
                self._fetch_rest(url, step)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500 and error.code != _HTTP_RANGE_NOT_SATISFIABLE:
                    raise SetupError(
                        f"cannot download {url}: the server answered {error.code} {error.reason}"
                    ) from error
                if error.code == _HTTP_RANGE_NOT_SATISFIABLE:
                    self.part.unlink(missing_ok=True)
                failure = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            else:
                if self._part_bytes() >= self._size_bytes:
                    return
                failure = OSError(f"the stream ended at byte {self._part_bytes()}")
        raise SetupError(
            f"cannot download {url}: {failure} (after {_TRIES_MAX} tries; what arrived is kept, "
            "so run the same command again to continue)"
        ) from failure

    def _part_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _fetch_rest(self, url: str, step: Step) -> None:
        begin = self._part_bytes()
        if begin >= self._size_bytes:
            return
        request = urllib.request.Request(url)  # noqa: S310  the scheme was checked
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        with urllib.request.urlopen(request, timeout=_CONNECT_TIMEOUT_S) as response:  # noqa: S310
            if response.status != _HTTP_PARTIAL:
                begin = 0  # this server does not support ranges: it sends all again, so we restart
            self._copy(response, begin, step)

    def _copy(self, response: Any, begin: int, step: Step) -> None:
        with self.part.open("ab" if begin else "wb") as part:
            done = begin
            step.advance_to(done)
            while block := response.read(_BLOCK_BYTES):
                part.write(block)
                done += len(block)
                if done > self._size_bytes:
                    return  # too long to be right: the check says so
                step.advance_to(done)

    def _check(self, url: str) -> None:
        found = sha256_of(self.part)
        if found == self._sha256:
            return
        size = self._part_bytes()
        self.part.unlink()
        raise SetupError(
            f"{url} is not the file expected: SHA-256 is {found} over {size} bytes, should be "
            f"{self._sha256} over {self._size_bytes} (removed; check the repository or proxy that "
            "served it, then run the same command again)"
        )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
