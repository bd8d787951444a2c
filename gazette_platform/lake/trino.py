"""Queries on Trino, with errors that say where and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

import trino.dbapi
import trino.exceptions
from requests.exceptions import RequestException

from gazette_platform.errors import LakeError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TrinoSession"]


@final
class TrinoSession:
    """Runs statements on one Trino; statements are independent, there is no transaction.

    Args:
        uri: ``http(s)://host:port``.
        user: the user that Trino sees.
        timeout_s: seconds to wait for each answer of the server; a query may take many answers.
    """

    def __init__(self, uri: str, *, user: str = "gazette", timeout_s: float = 60.0) -> None:
        parts = urlsplit(uri)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValidationError(f"not a Trino address (http://host:port): {uri!r}")
        self.uri = uri
        self._user = user
        self._timeout_s = timeout_s

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement to its end.

        Args:
            sql: one statement, values as ``?``.
            parameters: the values.

        Returns: all rows; for statements that write, one row with the count of rows.
        Raises: LakeError: Trino cannot be reached, or refused the statement; with its message.
        """
        parts = urlsplit(self.uri)
        connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=parts.hostname,
            port=parts.port or (443 if parts.scheme == "https" else 80),
            http_scheme=parts.scheme,
            user=self._user,
            source="gazette-platform",
            timezone="UTC",
            request_timeout=self._timeout_s,
            max_attempts=3,
        )
        try:
            cursor = connection.cursor()
            cursor.execute(sql.strip().rstrip(";"), list(parameters) or None)
            return [tuple(row) for row in cursor.fetchall()]
        except trino.exceptions.TrinoUserError as err:
            raise LakeError(f"Trino at {self.uri} refused a statement: {err.message}") from err
        except trino.exceptions.TrinoQueryError as err:
            raise LakeError(
                f"a query on Trino at {self.uri} failed ({err.error_name}): {err.message}; its page "
                f"is {self.uri}/ui/query.html?{err.query_id}"
            ) from err
        except (trino.exceptions.Error, RequestException) as err:
            raise LakeError(
                f"cannot reach Trino at {self.uri}: {err} (is it running? check `trino` in "
                "endpoints.json, or GAZETTE_TRINO_URI)"
            ) from err
        finally:
            connection.close()
