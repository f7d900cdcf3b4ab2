"""A headless Chromium controlled through its debugging pipe (file descriptors 3 and 4), without a driver or library."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Returns the browser's path: CHROMIUM, else the first installed program of the usual names."""
    stated_path = os.environ.get("CHROMIUM")
    return stated_path or next(filter(None, map(shutil.which, NAMES)), None)


class Thrown(RuntimeError):
    """An error that an expression threw in the page."""


class Page:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def open(self, url: str) -> None:
        """Goes to `url` without waiting for its scripts. A page in a background tab draws no charts."""
        self._call("Page.navigate", url=url)
        self._call("Page.bringToFront")

    def ask(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression (JSON types only).

        Raises:
            Thrown: the expression threw.
        """
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Thrown(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 900.0) -> Any:
        """Evaluates the expression until its value is true, and returns the value. An expression that throws counts as
        not yet true, because a page that is being redrawn lacks parts.

        Raises:
            TimeoutError: the value did not become true; the message has the page's text.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            value, threw = None, ""
            try:
                value = self.ask(expression)
            except Thrown as error:
                threw = f" ({error})"
            if value:
                return value
            if time.monotonic() > until_s:
                raise TimeoutError(f"{expression} within {timeout_s} s{threw} on: {self.text()}")
            time.sleep(0.2)

    def text(self) -> str:
        """Returns the text that a reader of the page sees."""
        return str(self.ask("document.body ? document.body.innerText : ''"))

    def click(self, expression: str, timeout_s: float = 900.0) -> None:
        """Presses the mouse in the middle of the element that the JavaScript expression returns, once it exists.

        While the page is drawn, the element may move away from the mouse. A press that hit another element or none is
        repeated; a press that hit the element is never repeated, however long the page takes to respond.

        Raises:
            TimeoutError: the element does not appear, or no press hits it.
        """
        place = f"""(() => {{
            const e = {expression};
            if (!e || e.disabled) return null;
            e.scrollIntoView({{block: "center"}});
            const r = e.getBoundingClientRect();
            const [x, y] = [r.x + r.width / 2, r.y + r.height / 2];
            if (!r.width || !e.contains(document.elementFromPoint(x, y))) return null;
            globalThis.reached = false;
            e.addEventListener("click", () => {{ globalThis.reached = true; }}, {{capture: true, once: true}});
            return [x, y];
        }})()"""
        for _ in range(20):
            x, y = self.wait_for(place, timeout_s)
            for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            if self.ask("globalThis.reached !== false"):  # undefined: the press led to another page
                return
            time.sleep(0.2)
        raise TimeoutError(f"no press of the mouse reached {expression} on: {self.text()}")

    def type(self, text: str) -> None:
        """Types into the focused element."""
        self._call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Writes the window's content as a PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._number:  # all else is events, which nobody here waits for
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> bytes:
        while b"\0" not in self._unread:
            if not select.select([self._from], [], [], 120)[0]:
                raise TimeoutError("the browser does not answer")
            block = os.read(self._from, 1 << 20)
            if not block:
                raise RuntimeError("the browser is gone, see chromium.log beside its profile")
            self._unread += block
        message, _, self._unread = self._unread.partition(b"\0")
        return message


@contextlib.contextmanager
def page(program: str, profile: Path, *, width: int, height: int) -> Generator[Page]:
    """Yields a page of a fresh browser with an empty `profile` folder; the browser is ended afterwards."""
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (command_read, answer_write)]
    os.close(command_read)
    os.close(answer_write)
    # The browser wants exactly 3 and 4: bash puts them there (sh may not know numbers of two digits).
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}', program]
    command += ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu"]
    command += [f"--window-size={width},{height}", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium refuses root otherwise
    log = (profile.parent / "chromium.log").open("wb")
    with log:
        browser = subprocess.Popen(command, pass_fds=theirs, stdout=log, stderr=log)
    for their in theirs:
        os.close(their)
    try:
        yield Page(command_write, answer_read)
    finally:
        os.close(command_write)  # which ends it
        try:
            browser.wait(timeout=10)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
        os.close(answer_read)
