"""Probes of components: what they make of whatever answers, or does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from gazette_platform.platform.component import answer_of, answers_http
from gazette_platform.platform.dagster import WEBSERVER, dagster_components

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The first frame of a gRPC server: settings, of six words.
_GRPC = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00?\x00\x00\x00\x05\x00\x10\x00\x00"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port where each connection gets `answer`, then its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_GRPC, id="gRPC"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", id="half"),
        pytest.param(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", id="500"),
        pytest.param(_OK + b"what", id="no JSON"),
        pytest.param(_OK + b"[]\r\n", id="no object"),
    ],
)
def test_a_web_server_is_not_ready_while_something_else_answers(answer: bytes, tmp_path: Path):
    """Reported as one more try: its process finds, and reports, that it ended because of its port."""
    with answering(answer) as port:
        found = dagster_components(
            tmp_path,
            port=port,
            code_ports={"dagster-code": 2},
            environment={},
            requires=(),
            uses=(),
        )
        (webserver,) = (component for component in found if component.name == WEBSERVER)
        assert not webserver.ready()
        assert answers_http(f"http://127.0.0.1:{port}/") is answer.startswith(_OK)


def test_probes_ask_no_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with answering(_OK + b"here") as port:
        assert answer_of(f"http://127.0.0.1:{port}/") == b"here"
