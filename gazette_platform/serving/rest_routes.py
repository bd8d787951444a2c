"""What routes of REST have in common: bodies that are read whole, refusals, pages of other origins."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from gazette_platform.errors import ValidationError
from gazette_platform.serving.rest_messages import call_error_line

if TYPE_CHECKING:
    from gazette_platform.serving.http_server import Origins

JSON_TYPE: Final = "application/json"

# Whoever can reach the port has its body parsed before a token is asked for, and nothing else is served
# meanwhile: 1 MB of empty labels takes a second.
_BODY_BYTES_MAX = 64 << 10


class RestRoutes:
    """Answers requests with JSON.

    Args:
        origins: whose pages may ask.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins = origins

    async def read_body(self, request: web.Request) -> bytes:
        """The whole body. Raises: ValidationError: it is too long. Cancellation: safe."""
        body = bytearray()
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > _BODY_BYTES_MAX:
                raise ValidationError(
                    f"the body has more than {_BODY_BYTES_MAX} bytes (ask for less at a time)"
                )
        return bytes(body)

    def refusal(
        self, request: web.Request, text: str, code: tuple[int, HTTPStatus]
    ) -> web.Response:
        """Return the answer to a request that is not served, of a code as `rest_messages` has them."""
        return self.answer(request, call_error_line(text, code), code[1])

    def answer(
        self, request: web.Request, body: bytes, status: HTTPStatus = HTTPStatus.OK
    ) -> web.Response:
        """An answer of JSON."""
        headers = self._origins.headers(request)
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(status=status, body=body, content_type=JSON_TYPE, headers=headers)

    async def preflight(self, request: web.Request) -> web.Response:
        """The answer to what browsers ask before a POST. Cancellation: safe."""
        headers = self._origins.headers(request)
        if headers:
            headers |= self._origins.preflight(request, "POST")
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)
