"""A server that plays the authority of a tenant of Microsoft Entra ID, for tests: there is no real one to
install. It knows one application, and gives it tokens by the client credentials grant, in the form in which
azurite takes them. What it refuses, it refuses in the words of the real one.
"""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, final
from urllib.parse import parse_qs

import jwt

from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.testing.etcd import CertificateAuthority

__all__ = ["TokenAuthority", "token_authority"]

_SCOPE = "https://storage.azure.com/.default"


@final
class TokenAuthority:
    """The application that it knows, and what it was asked.

    Attributes:
        audience: of the tokens that it gives.
        life_s: seconds for which it says that its tokens are valid. Those that it gives last an hour.
        given: tokens so far.
        status: HTTP status of all answers, if it fails; else 0.
    """

    tenant = "11111111-2222-3333-4444-555555555555"
    client_id = "an-application"
    secret = "a secret & more"

    def __init__(self) -> None:
        self.url = ""
        self.audience = "https://storage.azure.com"
        self.life_s = 3600
        self.given = 0
        self.status = 0

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """To a POST. Returns: status and body."""
        if self.status:
            return self.status, {"error": "temporarily_unavailable"}
        if path != f"/{self.tenant}/oauth2/v2.0/token":
            return 400, {"error": "invalid_request", "error_description": "AADSTS90002: no tenant"}
        if form.get("grant_type") != "client_credentials" or form.get("scope") != _SCOPE:
            return 400, {"error": "invalid_scope", "error_description": "AADSTS70011: wrong scope"}
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.secret):
            text = "AADSTS7000215: Invalid client secret provided.\r\nTrace ID: 0"
            return 401, {"error": "invalid_client", "error_description": text}
        self.given += 1
        now = int(SystemClock().unix_s())
        claims = {
            "aud": self.audience,
            "iss": f"https://sts.windows.net/{self.tenant}/",
            "iat": now - 1,
            "nbf": now - 1,
            "exp": now + 3600,
            "oid": "66666666-7777-8888-9999-000000000000",
            "tid": self.tenant,
        }
        token = jwt.encode(claims, "not checked by azurite, which knows no authority", "HS256")
        return 200, {"token_type": "Bearer", "expires_in": self.life_s, "access_token": token}


@contextmanager
def token_authority(certificates: CertificateAuthority) -> Iterator[TokenAuthority]:
    """The authority, at an address of its own over TLS."""
    authority = TokenAuthority()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            status, answer = authority.answer(self.path, form)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            """Nothing."""

    certificate = certificates.issue("authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, name="token-authority", daemon=True)
        thread.start()
        authority.url = f"https://127.0.0.1:{server.server_port}"
        try:
            yield authority
        finally:
            server.shutdown()
            thread.join()
