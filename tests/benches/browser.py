"""A headless Chromium for tests of web pages, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, final

import aiohttp
from palette import reduced

from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import eventually, pass_time, patient

__all__ = ["Browser", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.25
_SETTLE_TIMEOUT_S = 20.0
_SETTLE_S = 4.0
_WIDTH = 1400
# The last of several is the innermost.
_WITH_TEXT = """(() => {
  const found = [...document.querySelectorAll("a, button, div, span")].filter(
    e => e.innerText && e.innerText.trim() === %s && e.getClientRects().length);
  if (found.length) found[found.length - 1].%s;
  return found.length > 0;
})()"""
_DRAWN = "[...document.querySelectorAll('canvas')].filter(e => e.width && e.height).length"
_NAMED = frozenset(
    {
        "button",
        "link",
        "textbox",
        "searchbox",
        "checkbox",
        "tab",
        "table",
        "treegrid",
        "dialog",
        "image",
        "log",
    }
)
_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "PageDown": 34}
_KEY_CODES |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

# Chromium calls home in the background, which fails, slowly, on machines without the internet.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    f"--window-size={_WIDTH},1000",
    "--remote-debugging-port=0",
)


def find_chromium() -> Path:
    """The browser named by ``GAZETTE_CHROMIUM``, else the one on ``PATH``.

    Raises: SetupError: there is none.
    """
    named = os.environ.get("GAZETTE_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None or not os.access(found, os.X_OK):
        raise SetupError(
            f"no Chromium: {named or 'none on PATH'} (install Debian's package `chromium`, or set "
            "GAZETTE_CHROMIUM)"
        )
    return Path(found)


@final
class Browser:
    """One page of one browser process, with an empty profile. An async context manager.

    Args:
        flags: more flags of Chromium.

    Attributes:
        errors: of the page and its console, once `watch_errors` was called.
    """

    def __init__(self, binary: Path, *flags: str) -> None:
        self._binary = binary
        self._flags = flags
        self._profile = Path(tempfile.mkdtemp(prefix="gazette-chromium-"))
        self._process: asyncio.subprocess.Process | None = None
        self._http = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._ids = itertools.count(1)
        self.errors: list[str] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _start(self) -> None:
        log = self._profile / "chromium.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary),
                *_FLAGS,
                *self._flags,
                f"--user-data-dir={self._profile}",
                "about:blank",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        # Chromium writes the port that it chose, and the path of its socket, to this file.
        chosen = self._profile / "DevToolsActivePort"
        async with asyncio.timeout(patient(_START_TIMEOUT_S)):
            while not chosen.exists() or len(chosen.read_text().splitlines()) < 2:
                if self._process.returncode is not None:
                    raise SetupError(f"{self._binary} ended: {log.read_text()[-2000:]}")
                await asyncio.sleep(_POLL_S)
            port = chosen.read_text().splitlines()[0]
            async with self._http.get(f"http://127.0.0.1:{port}/json/list") as response:
                pages = await response.json()
        page = next(page for page in pages if page["type"] == "page")
        self._socket = await self._http.ws_connect(
            page["webSocketDebuggerUrl"], max_msg_size=64 << 20
        )

    async def _call(self, method: str, **params: object) -> dict[str, Any]:
        assert self._socket is not None
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(patient(_CALL_TIMEOUT_S)):
            while True:  # answers come among events, which the client did not ask for
                message = await self._socket.receive_json()
                if message.get("id") == number:
                    break
                self._note(message)
        if "error" in message:
            raise SetupError(f"chromium refused {method}: {message['error']}")
        return dict(message["result"])

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(json.dumps(params["args"]))

    async def watch_errors(self) -> None:
        """Note errors from now on."""
        for domain in ("Runtime", "Log", "Accessibility"):
            await self._call(f"{domain}.enable")

    async def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: ``dark`` or ``light``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self._call("Emulation.setEmulatedMedia", features=[feature])

    async def resize(self, width: int, height: int) -> None:
        """Show the page in so many pixels; narrow ones are of a telephone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self._call("Emulation.setDeviceMetricsOverride", **size)

    async def unnamed(self) -> list[str]:
        """Roles of what a reader can use, and that has no accessible name."""
        tree = await self._call("Accessibility.getFullAXTree")
        return [
            node["role"]["value"]
            for node in tree["nodes"]
            if not node.get("ignored")
            and node.get("role", {}).get("value") in _NAMED
            and not node.get("name", {}).get("value")
        ]

    async def press(self, key: str) -> None:
        """Press a key by its name, such as ``ArrowDown``."""
        code = _KEY_CODES.get(key, 0)
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        if key == "Enter":
            fields["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            await self._call("Input.dispatchKeyEvent", type=kind, **fields)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self._call("Input.insertText", text=text)

    async def open(self, url: str) -> None:
        """Go to `url`; returns before the page has rendered."""
        await self._call("Page.navigate", url=url)

    async def text(self) -> str:
        """The text that a reader of the page sees."""
        expression = "document.body ? document.body.innerText : ''"
        return str(await self._evaluate(expression) or "")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it comes to.

        Raises: SetupError: it throws.
        """
        result = await self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise SetupError(f"{expression}: {json.dumps(result['exceptionDetails'])}")
        return result["result"].get("value")

    async def _evaluate(self, expression: str) -> object:
        result = await self._call("Runtime.evaluate", expression=expression)
        return result["result"].get("value")

    async def wait_for(self, *texts: str, timeout_s: float = 60.0) -> str:
        """Wait until the page shows all `texts`. Returns: all that it shows.

        Raises: TimeoutError: with what is missing, and what is shown instead.
        """
        shown = ""
        missing = list(texts)

        async def is_shown() -> bool:
            nonlocal shown, missing
            shown = await self.text()
            missing = [text for text in texts if text not in shown]
            return not missing

        try:
            await eventually(is_shown, timeout_s=timeout_s, poll_s=_POLL_S)
        except TimeoutError as err:
            raise TimeoutError(f"the page lacks {missing}; it shows:\n{shown}") from err
        return shown

    async def click(self, text: str, *, timeout_s: float = 60.0) -> None:
        """Click the innermost element whose text is just `text`, once there is one.

        Raises: TimeoutError: there is none.
        """
        await self._until(_WITH_TEXT % (json.dumps(text), "click()"), f"{text!r}", timeout_s)

    async def click_in_row(self, text: str, *, timeout_s: float = 60.0) -> None:
        """Click the first link or button of the first row of a table that shows `text`.

        Raises: TimeoutError: there is none.
        """
        row = f"[...document.querySelectorAll('tr')].find(r => r.innerText.includes({json.dumps(text)}))"
        link = f"{row}?.querySelector('a, button')"
        await self._until(
            f"{link} ? ({link}.click(), true) : false", f"a row of {text!r}", timeout_s
        )

    async def press_alt(self, letter: str) -> None:
        """Press a letter together with Alt."""
        key = {"code": f"Key{letter.upper()}", "key": letter, "modifiers": 1}
        for kind in ("keyDown", "keyUp"):
            await self._call("Input.dispatchKeyEvent", type=kind, **key)

    async def scroll_to(self, text: str, *, timeout_s: float = 60.0) -> None:
        """Have the element whose text is just `text` at the top. Raises: TimeoutError: there is none."""
        await self._until(
            _WITH_TEXT % (json.dumps(text), "scrollIntoView()"), f"{text!r}", timeout_s
        )

    async def wait_for_plots(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Wait until the page has drawn `count` plots. Raises: TimeoutError: they are fewer."""
        await self._until(f"{_DRAWN} >= {count}", f"{count} plots", timeout_s)

    async def _until(self, expression: str, name: str, timeout_s: float) -> None:
        try:
            await eventually(
                lambda: self._evaluate(expression), timeout_s=timeout_s, poll_s=_POLL_S
            )
        except TimeoutError as err:
            raise TimeoutError(f"the page lacks {name}") from err

    async def screenshot(self, path: Path, *, height: int = 1000) -> None:
        """Save a small picture of the page as PNG, with a palette, once nothing is loading any more.

        Args:
            path: of the file.
            height: of the page, in pixels; its width is 1400.
        """
        await self.resize(_WIDTH, height)
        with suppress(TimeoutError):  # it may be a word of the page
            loaded = "!document.body.innerText.includes('Loading')"
            await self._until(loaded, "its end of loading", _SETTLE_TIMEOUT_S)
        # What moves, and places of what is still to come, have no text.
        await pass_time(_SETTLE_S)
        result = await self._call("Page.captureScreenshot", format="png")
        picture = await asyncio.to_thread(reduced, b64decode(result["data"]))
        await asyncio.to_thread(path.write_bytes, picture)

    async def close(self) -> None:
        """End the browser and remove its profile."""
        if self._socket is not None:
            await self._socket.close()
        await self._http.close()
        if self._process is not None:
            self._process.terminate()
            try:
                async with asyncio.timeout(patient(_STOP_TIMEOUT_S)):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)
