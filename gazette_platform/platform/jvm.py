"""A Java virtual machine driven from Python over py4j; PySpark ships both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

_CAUSES_MAX = 20


@final
class Jvm:
    """A JVM that lives as long as the block, and never longer than this process.

    Entering gives py4j's view of it. py4j's gateway exits when its standard input breaks, so the
    JVM ends with this process, however that ends. Calls need a token, and go over loopback.

    Args:
        java_home: of the runtime.
        classpath: jars, folders and ``folder/*``.
        options: of the java command.
        cwd: working folder of the JVM.

    Raises: SetupError: on entering: it did not start.
    """

    def __init__(
        self,
        *,
        java_home: Path,
        classpath: Sequence[str],
        options: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self._java = java_home / "bin" / "java"
        self._classpath = os.pathsep.join(classpath)
        self._options = list(options)
        self._cwd = cwd
        self._gateway: Any = None
        self._process: Any = None

    def __enter__(self) -> Any:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> Any:
        """Start it. Returns: py4j's view, through which Java classes are reached by name."""
        from py4j.java_gateway import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra
            GatewayParameters,
            JavaGateway,
            launch_gateway,
        )

        # Descriptors of our own, since py4j closes what it is given when the JVM has ended.
        output = os.fdopen(os.dup(2), "w")
        errors = os.fdopen(os.dup(2), "w")
        try:
            port, token, self._process = launch_gateway(
                classpath=self._classpath,
                javaopts=self._options,
                java_path=str(self._java),
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
                redirect_stdout=output,
                redirect_stderr=errors,
                # Signals are ours to handle: an interrupt of the terminal must not kill it midway.
                create_new_process_group=True,
                cwd=None if self._cwd is None else str(self._cwd),
            )
        except (OSError, ValueError) as error:
            # ValueError: it printed something else than the port, or nothing.
            output.close()
            raise SetupError(
                f"{self._java} did not start: {error} (its output is above)"
            ) from error
        finally:
            errors.close()
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        return self._gateway.jvm

    def close(self) -> None:
        """End it, if it was started. Safe to call twice."""
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway = None
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=10)
            self._process = None


def root_cause(error: Exception) -> str:
    """What a failed call says at its root: Java's outer exceptions are wrappers."""
    throwable: Any = getattr(error, "java_exception", None)
    if throwable is None:
        return str(error)
    for _ in range(_CAUSES_MAX):
        cause = throwable.getCause()
        if cause is None:
            break
        throwable = cause
    return str(throwable.toString())
