"""A gate before a REST catalog that lets those in who have a token, and gives tokens for a credential: as catalogs of services have."""

from __future__ import annotations

import json
import secrets
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, final
from urllib.parse import parse_qs

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TokenGate", "token_gate"]

_TIMEOUT_S = 60.0
_PASSED_ON = ("Content-Type", "X-Iceberg-Access-Delegation")


@final
class TokenGate:
    """What the gate knows.

    Attributes:
        port: of loopback.
        credential: ``ID:SECRET`` for which it gives tokens.
        page: what it answers in place of the catalog; empty: it asks that.
        given: tokens so far.
    """

    def __init__(self, upstream: str) -> None:
        self.port = 0
        self.credential = f"a-client:{secrets.token_hex(8)}"
        self.page = ""
        self.given: list[str] = []
        self._upstream = upstream
        self._valid: set[str] = set()

    @property
    def uri(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def expire(self) -> None:
        """Take none of the tokens any more that were given."""
        self._valid.clear()

    def give(self, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """To who asks for a token. Returns: status and body."""
        if f"{form.get('client_id')}:{form.get('client_secret')}" != self.credential:
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        token = secrets.token_hex(8)
        self.given.append(token)
        self._valid.add(token)
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": 3600}

    def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, str]:
        """Status, body, and type of the body."""
        if path == "/v1/oauth/tokens":
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            status, told = self.give(form)
            return status, json.dumps(told).encode(), "application/json"
        if headers.get("Authorization", "").removeprefix("Bearer ") not in self._valid:
            error = {"message": "who are you?", "type": "NotAuthorizedException", "code": 401}
            return 401, json.dumps({"error": error}).encode(), "application/json"
        if self.page:
            return 200, self.page.encode(), "text/html"
        told = {name: headers[name] for name in _PASSED_ON if name in headers}
        request = urllib.request.Request(
            self._upstream + path, data=body or None, headers=told, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as found:
                return found.status, found.read(), "application/json"
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read(), "application/json"


@contextmanager
def token_gate(upstream: str) -> Iterator[TokenGate]:
    """A gate before the catalog at `upstream`, on loopback."""
    gate = TokenGate(upstream)

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, told, kind = gate.answer(self.command, self.path, dict(self.headers), body)
            self.send_response(status)
            if status not in {204, 304}:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(told)

        do_GET = do_HEAD = do_POST = do_DELETE = _handle  # noqa: N815  named by the library

        @override
        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gate.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
