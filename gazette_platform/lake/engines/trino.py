"""Queries on Trino, with errors that say where and what to do; and who asks.

Also the statements of files (``sql/trino`` and ``sql/spark``, one each), and the query that an event shows of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final
from urllib.parse import urlsplit

import requests
import trino.auth
import trino.dbapi
import trino.exceptions
from typing_extensions import override

import gazette_platform
from gazette_platform.errors import LakeError, SetupError, ValidationError
from gazette_platform.lake.catalog_settings import HIVE, TrinoCatalogs, secret_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

_USER = "gazette"
_ERROR_CHARACTERS_MAX = 300


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrinoLogin:
    """Who asks a Trino, how that is proved, and whose certificate the server has.

    A login without password, token and certificate is taken by servers that ask for none.

    Raises: ValidationError: more than one proof is given, or half of a certificate.
    """

    user: str = _USER
    """The user that Trino sees."""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """A JWT."""
    cert_file: str = ""
    """PEM file of a client certificate, and its key in the other."""
    cert_key_file: str = ""
    ca_file: str = ""
    """PEM file of the authority that signed the server's certificate; empty: those of the system."""

    def __post_init__(self) -> None:
        if bool(self.cert_file) != bool(self.cert_key_file):
            raise ValidationError(
                "a client certificate needs both GAZETTE_TRINO_CERT_FILE and "
                "GAZETTE_TRINO_CERT_KEY_FILE",
                path="GAZETTE_TRINO_CERT_FILE",
            )
        proofs = {
            "GAZETTE_TRINO_PASSWORD": self.password,
            "GAZETTE_TRINO_TOKEN": self.token,
            "GAZETTE_TRINO_CERT_FILE": self.cert_file,
        }
        given = [name for name, value in proofs.items() if value]
        if len(given) > 1:
            raise ValidationError(f"set one of {' and '.join(given)}, not all", path=given[0])

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, user: str = "") -> Self:
        """The login that `environment` gives. Files of secrets are read now, so that they may be renewed.

        Args:
            environment: GAZETTE_TRINO_USER, GAZETTE_TRINO_PASSWORD or GAZETTE_TRINO_PASSWORD_FILE,
                GAZETTE_TRINO_TOKEN or GAZETTE_TRINO_TOKEN_FILE, GAZETTE_TRINO_CERT_FILE with
                GAZETTE_TRINO_CERT_KEY_FILE, GAZETTE_TRINO_CA_FILE.
            user: wins over the environment's.

        Raises: SetupError: a file cannot be read. ValidationError: see the class.
        """
        return cls(
            user=user or environment.get("GAZETTE_TRINO_USER") or _USER,
            password=secret_of(environment, "GAZETTE_TRINO_PASSWORD"),
            token=secret_of(environment, "GAZETTE_TRINO_TOKEN"),
            cert_file=environment.get("GAZETTE_TRINO_CERT_FILE", ""),
            cert_key_file=environment.get("GAZETTE_TRINO_CERT_KEY_FILE", ""),
            ca_file=environment.get("GAZETTE_TRINO_CA_FILE", ""),
        )

    @property
    def proof(self) -> trino.auth.Authentication | None:
        """What the client of Trino sends with each request."""
        if self.password:
            return trino.auth.BasicAuthentication(self.user, self.password)
        if self.token:
            return trino.auth.JWTAuthentication(self.token)
        if self.cert_file:
            return trino.auth.CertificateAuthentication(self.cert_file, self.cert_key_file)
        return None


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether it, or what it came of, is a failure of TLS; the client of Trino wraps them."""
    while error is not None and not isinstance(error, requests.exceptions.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


class _HttpSession(requests.Session):
    """A session whose `verify` counts.

    That of `requests` prefers REQUESTS_CA_BUNDLE of the environment, which other programs are given.
    """

    @override
    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> Any:
        chosen = self.verify if verify is None and isinstance(self.verify, str) else verify
        return super().merge_environment_settings(url, proxies, stream, chosen, cert)


@final
class TrinoSession:
    """Runs statements on one Trino; statements are independent, there is no transaction.

    Args:
        uri: ``http(s)://host:port``.
        login: who asks; None: user ``gazette``, with no proof.
        timeout_s: seconds to wait for each answer of the server; a query may take many answers.

    Raises: ValidationError: `uri` is not an address, or a proof would go over plain HTTP.
    """

    def __init__(
        self, uri: str, *, login: TrinoLogin | None = None, timeout_s: float = 60.0
    ) -> None:
        parts = urlsplit(uri)
        if parts.username is not None or parts.password is not None:
            # The address is in messages, and on pages of Dagster.
            raise ValidationError(
                "the address of Trino may hold no user and password, as it is shown: set GAZETTE_TRINO_USER and "
                "GAZETTE_TRINO_PASSWORD, or GAZETTE_TRINO_PASSWORD_FILE"
            )
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
            raise ValidationError(f"not a Trino address (http://host:port): {uri!r}")
        self.uri = uri.rstrip("/")
        self._scheme = parts.scheme
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._login = login or TrinoLogin()
        self._timeout_s = timeout_s
        if self._scheme == "http" and self._login.proof is not None:
            raise ValidationError(
                f"a password, token or certificate for Trino is set, and {uri} is not https:// "
                "(use the address of its HTTPS port, or unset GAZETTE_TRINO_PASSWORD, _TOKEN and "
                "_CERT_FILE)"
            )

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement to its end.

        Args:
            sql: one statement, values as ``?``.
            parameters: the values.

        Returns: all rows; for statements that write, one row with the count of rows.
        Raises: LakeError: Trino cannot be reached, or refused the statement or the login; with its
            message.
        """
        session = _HttpSession()
        session.verify = self._login.ca_file or True
        connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=self._host,
            port=self._port,
            http_scheme=self._scheme,
            user=self._login.user,
            auth=self._login.proof,
            http_session=session,
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
        except trino.exceptions.HttpError as err:
            raise LakeError(self._refusal(str(err))) from err
        except JSONDecodeError as err:
            raise LakeError(
                f"what answers at {self.uri} is not Trino: {err} (check GAZETTE_TRINO_URI; a proxy "
                "before it may want a login of its own)"
            ) from err
        except (trino.exceptions.Error, requests.exceptions.RequestException, OSError) as err:
            advice = (
                "if an authority of your own signed its certificate, name its PEM file by "
                "GAZETTE_TRINO_CA_FILE"
                if _is_of_tls(err)
                else "is it running? check `trino` in endpoints.json, or GAZETTE_TRINO_URI"
            )
            raise LakeError(f"cannot reach Trino at {self.uri}: {err} ({advice})") from err
        finally:
            connection.close()

    def _refusal(self, answer: str) -> str:
        """Describe an HTTP status, which the client reports as ``error 401: b'…'``."""
        text = answer[:_ERROR_CHARACTERS_MAX]
        user = self._login.user
        if answer.startswith(("error 401", "error 403")):
            return (
                f"Trino at {self.uri} does not let {user!r} in ({text}): check GAZETTE_TRINO_USER, "
                "and GAZETTE_TRINO_PASSWORD, _TOKEN or _CERT_FILE"
                + ("" if self._scheme == "https" else "; it may want https://")
            )
        return f"Trino at {self.uri} answered {text} (see its log, or that of the proxy before it)"


def sql_folder() -> Path:
    """The folder with the SQL files: inside an installed package, else of the repository.

    Raises: SetupError: neither exists.
    """
    package = Path(gazette_platform.__file__).parent
    for folder in (package / "_sql", package.parent / "sql"):
        if folder.is_dir():
            return folder
    raise SetupError(f"the SQL files are missing beside {package}: install the package again")


@cache
def load_sql(name: str) -> str:
    """The statement in file `name`, such as ``trino/busiest_routes.sql``.

    Raises: SetupError: there is no such file.
    """
    path = sql_folder() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        raise SetupError(f"cannot read {path}: {err.strerror}; install the package again") from err


def partition_query(spec: TableSpec, key: str, values: Sequence[str], catalog: str = HIVE) -> str:
    """A query of all rows of a Hive partition, or of those of a time, for Trino.

    Args:
        spec: of the table.
        key: of the Hive partition, which has the names of the columns; or of a time, for all rows of that.
        values: of these columns, in their order.
        catalog: what Trino calls the catalog of the table.
    """
    types = {partition.column: partition.type for partition in spec.partitions}
    names = [part.partition("=")[0] for part in key.split("/")] if values else []
    terms = [
        f'"{name}" = {_literal(value, types.get(name, "string"))}'
        for name, value in zip(names, values, strict=True)
    ]
    # A line a term: pages cut off what is long.
    joint = "\n  AND "
    where = f"\nWHERE {joint.join(terms)}" if terms else ""
    # Shown to people. Names are checked by the spec, and values quoted.
    table = TrinoCatalogs(hive=catalog).in_sql(f'hive."{spec.schema}"."{spec.table}"')
    return f"SELECT * FROM {table}{where}"  # noqa: S608  see above


def _literal(value: str, kind: str) -> str:
    text = "'" + value.replace("'", "''") + "'"
    if kind == "string":
        return text
    return f"DATE {text}" if kind == "date" else value
