"""A platform as a user starts it, and ways to ask its servers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gazette_platform.lake import LakeSettings
from gazette_platform.lake.engines.spark import start_session
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.platform import tools
from gazette_platform.platform.layout import Endpoints, PlatformDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LivePlatform", "SparkStart", "gazette", "http", "running_platform"]

LOCATION = "gazette_platform.definitions"
_START_TIMEOUT_S = 900
"""The first start on a machine downloads about a gigabyte."""


def gazette(*args: object, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """Run `gazette` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gazette_platform.cli.gazette", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def http(url: str, *, method: str = "GET", data: bytes | None = None) -> tuple[int, Any, bytes]:
    """Return status, headers and body of an answer, whatever its status."""
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


@dataclass
class LivePlatform:
    """A platform that runs: its folders, addresses, and the variables that `gazette env` prints."""

    layout: PlatformDir
    endpoints: Endpoints
    environment: dict[str, str]
    settings: LakeSettings = field(init=False)
    trino: TrinoSession = field(init=False)

    def __post_init__(self) -> None:
        self.settings = LakeSettings.from_environment(self.environment)
        self.trino = TrinoSession(self.endpoints.trino) if self.endpoints.trino else None

    @classmethod
    def of(cls, root: Path) -> LivePlatform:
        """Return the platform that runs in a folder."""
        printed = gazette("env", "--root", root)
        assert printed.returncode == 0, printed.stderr
        words = shlex.split(printed.stdout)
        pairs = (word.split("=", 1) for word in words if word != "export")
        layout = PlatformDir.at(root)
        return cls(layout, Endpoints.load(layout.endpoints), dict(pairs))

    def ask(self, query: str, **variables: object) -> Any:
        """Ask Dagster's web server by GraphQL. Return the data of the answer."""
        request = urllib.request.Request(
            f"{self.endpoints.dagster}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found
        return found["data"]


@contextmanager
def running_platform(root: Path, *options: str) -> Iterator[LivePlatform]:
    """Start a platform by `gazette up --detach`, and stop it by `gazette down` at the end."""
    try:
        done = gazette("up", "--root", root, "--detach", *options, timeout_s=_START_TIMEOUT_S)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        yield LivePlatform.of(root)
    finally:
        stopped = gazette("down", "--root", root)
        assert stopped.returncode == 0, stopped.stderr


class SparkStart:
    """Starts a Spark session on a lake while other work goes on."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._session: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        os.environ["JAVA_HOME"] = str(tools.java(21))
        self._thread.start()

    def _start(self) -> None:
        try:
            self._session = start_session(self._settings)
            # The first question loads Hive's client, which takes seconds.
            self._session.sql("SHOW DATABASES").collect()
        except BaseException as failure:  # noqa: BLE001  raised where the session is asked for
            self._failure = failure

    def session(self) -> Any:
        """Wait until the session has started. Return it. Raises: whatever its start raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._session
