"""PyIceberg's client of REST servers, such that no call waits for ever, no connection stays, and secrets stay where they are.

PyIceberg's own has no time-outs: a server that takes a connection and never answers would hold a run for ever. It
keeps connections, which nothing closes; here each call has one of its own, and a run makes a few. And it hands on tokens to
whatever reads files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManagerAdapter, LegacyOAuth2AuthManager, NoopAuthManager
from pyiceberg.exceptions import RESTError
from requests import Session
from typing_extensions import override

from gazette_platform.errors import LakeError
from gazette_platform.lake.catalog_settings import ANSWER_S, CONNECT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest.auth import AuthManager
    from requests import PreparedRequest, Response

    from gazette_platform.lake.catalog_settings import CatalogLogin, IcebergCatalog

# PyIceberg's default.
_SCOPE: Final = "catalog"


def rest_catalog(
    catalog: IcebergCatalog,
    login: CatalogLogin,
    io_properties: Mapping[str, str],
    *,
    answer_s: float = ANSWER_S,
) -> Catalog:
    """A client of a REST server, which is asked for its settings.

    Args:
        login: who asks.
        io_properties: how PyIceberg reaches files, if the server does not say it.
        answer_s: seconds to wait for an answer.

    Raises: LakeError: the server cannot be reached, is none, or does not let us in.
    """
    properties = {"uri": catalog.uri, **io_properties}
    if catalog.warehouse:
        properties["warehouse"] = catalog.warehouse
    try:
        return _RestClient(catalog, login, properties, answer_s)
    except (RESTError, OSError, ValueError) as err:
        raise LakeError(
            f"the catalog at {catalog.uri} cannot be asked ({str(err).partition(chr(10))[0]}): see that it runs and "
            "is one of Iceberg's REST catalogs. Who asks is said by GAZETTE_ICEBERG_TOKEN or "
            "GAZETTE_ICEBERG_CREDENTIAL"
        ) from err


@final
class _Session(Session):
    """Waits no longer than it should, and keeps no connection."""

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self.headers["Connection"] = "close"
        self._answer_s = answer_s

    @override
    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = (CONNECT_S, self._answer_s)
        return super().send(request, **kwargs)


@final
class _RestClient(RestCatalog):
    """PyIceberg's, with a session of ours. Its properties hold no secrets except those that the server gives."""

    def __init__(
        self,
        catalog: IcebergCatalog,
        login: CatalogLogin,
        properties: Mapping[str, str],
        answer_s: float,
    ) -> None:
        self._login = login
        self._asks_at = login.asks_at(catalog)
        self._answer_s = answer_s
        super().__init__(catalog.name, **properties)

    @override
    def _create_session(self) -> Session:
        session = _Session(self._answer_s)
        self._config_headers(session)
        session.auth = AuthManagerAdapter(self._authority(session))
        return session

    def _authority(self, session: Session) -> AuthManager:
        login = self._login
        if login.token:
            return LegacyOAuth2AuthManager(session, initial_token=login.token)
        if login.credential:
            # The one of PyIceberg's that asks by our session. It gets another token once the server takes this one no more.
            return LegacyOAuth2AuthManager(
                session,
                auth_url=self._asks_at,
                credential=login.credential,
                optional_oauth_params={"scope": login.scope or _SCOPE},
            )
        return NoopAuthManager()
