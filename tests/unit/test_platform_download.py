"""Downloads against a local server that can cut, resume, and lie."""

from __future__ import annotations

import hashlib
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.platform.download import Download, sha256_of, show_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 512
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class FileServer:
    """Serves one file; `cut_after` ends the first answers early, `ranges` may be off."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.ranges = True
        self.cut_after: list[int] = []
        self.status = 200
        self.asked: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_args: object) -> None:
                """Not shown."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/file.bin"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        if self.status != 200:
            request.send_error(self.status)
            return
        begin = 0
        if wanted and self.ranges:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(self.content):
                request.send_error(416)
                return
        body = self.content[begin:]
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.cut_after:
            body = body[: self.cut_after.pop(0)]
        request.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[FileServer]:
    server = FileServer()
    yield server
    server.close()


def download(folder: Path, *, sha256: str = SHA256) -> Download:
    return Download(
        folder / "file.bin", sha256=sha256, size_bytes=len(CONTENT), sleep=lambda _seconds: None
    )


def test_download_appears_whole_and_is_not_fetched_again(server: FileServer, tmp_path: Path):
    assert download(tmp_path).run(server.url).read_bytes() == CONTENT
    assert download(tmp_path).run(server.url) == tmp_path / "file.bin"
    assert server.asked == [None]
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_download_continues_what_another_process_left(server: FileServer, tmp_path: Path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:70_000])
    assert sha256_of(download(tmp_path).run(server.url)) == SHA256
    assert server.asked == ["bytes=70000-"]


def test_download_resumes_after_the_stream_breaks(server: FileServer, tmp_path: Path):
    server.cut_after = [50_000, 10_000]
    assert download(tmp_path).run(server.url).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=50000-", "bytes=60000-"]


def test_download_starts_over_when_the_server_ignores_ranges(server: FileServer, tmp_path: Path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 70_000)
    assert download(tmp_path).run(server.url).read_bytes() == CONTENT


def test_complete_part_needs_no_request(server: FileServer, tmp_path: Path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(tmp_path).run(server.url).read_bytes() == CONTENT
    assert server.asked == []


def test_wrong_content_is_refused_and_removed(server: FileServer, tmp_path: Path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(SetupError, match="is not the file expected: SHA-256"):
        download(tmp_path).run(server.url)
    assert list(tmp_path.iterdir()) == []


def test_longer_content_is_refused(server: FileServer, tmp_path: Path):
    server.content = CONTENT + b"more"
    with pytest.raises(SetupError, match="is not the file expected"):
        download(tmp_path).run(server.url)


def test_missing_file_is_not_asked_for_twice(server: FileServer, tmp_path: Path):
    server.status = 404
    with pytest.raises(SetupError, match="the server answered 404"):
        download(tmp_path).run(server.url)
    assert len(server.asked) == 1


def test_server_that_keeps_failing_is_given_up_and_the_part_is_kept(
    server: FileServer, tmp_path: Path
):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:100])
    server.status = 503
    with pytest.raises(SetupError, match="after 6 tries; what arrived is kept"):
        download(tmp_path).run(server.url)
    assert len(server.asked) == 6
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:100]


def test_other_schemes_are_refused(tmp_path: Path):
    with pytest.raises(SetupError, match="only http and https"):
        download(tmp_path).run("file:///etc/passwd")


def test_progress_off_a_terminal_is_a_few_plain_lines():
    shown = io.StringIO()
    with show_step("tool", 1_000_000_000, stream=shown) as step:
        for done in range(0, 1_000_000_001, 1_000_000):
            step.advance_to(done)
    lines = shown.getvalue().splitlines()
    assert lines[0] == "tool …"
    assert lines[1] == "tool: 10% (100 of 1000 MB)"
    assert lines[-1] == "tool: 100% (1000 of 1000 MB)"
    assert len(lines) == 11
