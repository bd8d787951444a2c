"""A process of its own that uses brokers as if nothing happened, and reports when they were late.

It asks each broker for its readiness ten times a second, which shows whether the event loop is blocked.
It also appends to journals that no other client uses, and reads them back through another broker. Time in
which the threads concerned were ready to run, and the machine had no core for them, is subtracted: the
machine is to blame for it, not the broker.

It also lists journals at the gRPC port. Reads one JSON object from stdin, writes one per line, and needs only
the standard library.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time
from pathlib import Path

import http2  # beside this file

LOOP_LATE_S = 1.0
PROBE_LATE_S = 2.0
LIST_LATE_S = 5.0  # so that a blocked event loop is called that
_GIVE_UP_S = 15.0
_DROPPED = "dropped the call, as it does while thousands wait for it"
_lock = threading.Lock()


def tell(**event: object) -> None:
    """Write one line."""
    with _lock, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def waited_s(*threads: tuple[int, int]) -> float:
    """Seconds that threads have waited for a core so far. Each is given with its process."""
    total = 0
    for process, thread in threads:
        with contextlib.suppress(OSError, IndexError):
            text = Path(f"/proc/{process}/task/{thread}/schedstat").read_text()
            total += int(text.split()[1])
    return total / 1e9


class Beat:
    """Times one exchange."""

    def __init__(self, pids: list[int]) -> None:
        self._threads = [(pid, pid) for pid in pids]
        self._threads.append(("self", threading.get_native_id()))  # type: ignore[arg-type]
        self._waited_s, self.began = waited_s(*self._threads), time.monotonic()

    def late_s(self) -> float:
        """Seconds since the beginning for which only the brokers are to blame."""
        return time.monotonic() - self.began - (waited_s(*self._threads) - self._waited_s)


def watch_loop(number: int, port: int, pid: int) -> None:
    """Ask for readiness for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_GIVE_UP_S)
    beats = 0
    while True:
        beat = Beat([pid])
        try:
            connection.request("GET", "/debug/ready")
            response = connection.getresponse()
            response.read()
            problem = "" if response.status == 200 else f"readiness answers {response.status}"
            is_late = False
        except (OSError, http.client.HTTPException) as err:
            connection.close()
            is_late = isinstance(err, TimeoutError)
            problem = f"readiness does not answer: {err!r}"
        late_s = beat.late_s()
        if late_s > LOOP_LATE_S:
            problem, is_late = f"its event loop was blocked for {late_s:.1f} s", True
        if problem:
            tell(broker=number, problem=problem, late=is_late)
        beats += 1
        if beats % 10 == 0:
            tell(beats=10)
        time.sleep(0.1)


def call(number: int, port: int, pid: int, token: str) -> None:
    """List journals by raw HTTP/2 for ever: whatever others send to the port, a good caller is answered."""
    field = (b"authorization", b"Bearer " + token.encode())
    raw = http2.request(b"/protocol.Journal/List", http2.message(b""), field)
    # With a few thousand journals the answer is larger than the windows that HTTP/2 begins with.
    credit = (1 << 30).to_bytes(4, "big")
    raw += b"".join(http2.frame(http2.WINDOW_UPDATE, 0, stream, credit) for stream in (0, 1))
    while True:
        beat, answer, problem = Beat([pid]), b"", ""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=_GIVE_UP_S) as connection:
                connection.sendall(raw)
                while not http2.is_answered(answer):
                    piece = connection.recv(1 << 16)
                    if not piece:
                        problem = f"List is not answered: {answer[-300:]!r}"
                        break
                    answer += piece
            is_late = False
        except OSError as err:
            problem, is_late = f"List is not answered: {err!r}", isinstance(err, TimeoutError)
        late_s = beat.late_s()
        if not problem and late_s > LIST_LATE_S:
            problem, is_late = f"List took {late_s:.1f} s", True
        if problem:
            tell(broker=number, problem=problem, late=is_late)
        time.sleep(0.2)


def use(journal: str, ports: list[int], pids: list[int], token: str) -> None:
    """Append and read for ever."""
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    turn = 0
    while True:
        turn += 1
        line = f"pulse {turn}\n".encode()
        beat = Beat(pids)
        while True:
            try:
                began = exchange(ports[turn % 2], "PUT", f"/{journal}", headers, line, 204)
                at = began.headers["X-Commit-Begin"]
                path = f"/{journal}?offset={at}"
                exchange(ports[(turn + 1) % 2], "GET", path, headers, None, 206, line)
                problem, is_late = "", False
            except (OSError, http.client.HTTPException) as err:
                problem, is_late = f"{err!r}", isinstance(err, TimeoutError)
            # A broker for which thousands of calls wait says so, and clients ask again at once.
            if _DROPPED not in problem or beat.late_s() > PROBE_LATE_S:
                break
        late_s = beat.late_s()
        if not problem and late_s > PROBE_LATE_S:
            problem, is_late = "it was slow", True
        if problem:
            text = f"append and read took {late_s:.1f} s: {problem}"
            tell(journal=journal, problem=text, late=is_late)
        time.sleep(0.3)


class _Response(http.client.HTTPResponse):
    """Keeps the trailer, in which a broker says why a read has ended."""

    trailer = b""

    def _read_and_discard_trailer(self) -> None:
        while (line := self.fp.readline(65537)) not in {b"\r\n", b"\n", b""}:
            self.trailer += line


def exchange(
    port: int,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
    expected: int,
    content: bytes = b"",
) -> http.client.HTTPResponse:
    """One request. Raises: OSError: the status or the content is not the expected one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_GIVE_UP_S)
    connection.response_class = _Response
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        found = response.read()
        if response.status != expected or not found.startswith(content):
            trailer = getattr(response, "trailer", b"")
            raise OSError(
                f"{method} {path}: {response.status} {found[:200]!r} {response.headers.items()} {trailer!r}"
            )
        return response


def main() -> None:
    """Run until stdin closes."""
    wanted = json.loads(sys.stdin.readline())
    ports, pids = wanted["ports"], wanted["pids"]
    for number, (port, pid) in enumerate(zip(ports, pids, strict=True)):
        threading.Thread(target=watch_loop, args=(number, port, pid), daemon=True).start()
    for number, port in enumerate(wanted["http2_ports"]):
        arguments = (number, port, pids[number], wanted["token"])
        threading.Thread(target=call, args=arguments, daemon=True).start()
    for journal in wanted["journals"]:
        arguments = (journal, ports, pids, wanted["token"])
        threading.Thread(target=use, args=arguments, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
