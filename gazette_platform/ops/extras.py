"""Optional packages: import them with an error that names our extra, and bound psycopg's waits."""

from __future__ import annotations

import importlib
from typing import Any, Final

from typing_extensions import override

from gazette_platform.errors import SetupError


def required(package: str, *, extra: str, by: str) -> Any:
    """Import a package.

    Args:
        package: its name; of a module in it, the first part is what is installed.
        extra: of ours, that installs it.
        by: what needs it, in the plural, for the error.

    Raises: SetupError: it is missing; says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as err:
        name = package.partition(".")[0]
        raise SetupError(f"{by} need {name}: pip install 'gazette-platform[{extra}]'") from err


# Between two looks whether an interrupt has come: psycopg's default.
_LOOK_S: Final = 0.1


def bounded_connection(answer_s: float) -> Any:
    """A class of connections that are closed once an answer does not come.

    What was begun on one is then rolled back, or was done.

    Args:
        answer_s: seconds to wait for an answer.

    Raises: ImportError: there is no psycopg.
    """
    import psycopg  # noqa: PLC0415  of an extra

    class Bounded(psycopg.Connection[Any]):
        @override
        def wait(self, gen: Any, interval: float = _LOOK_S, timeout: float | None = None) -> Any:
            limit = answer_s if timeout is None else timeout
            try:
                return super().wait(gen, interval, limit)
            except psycopg.OperationalError:
                if self.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    # The answer may come yet: nothing else can be asked here.
                    self.close()
                raise

    return Bounded
