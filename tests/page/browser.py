"""A real browser, which holds pages to their promises: no errors, and nothing from elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
EVIL = "evil.example"
"""A name of another site, which leads to this machine."""


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Chromium without a window; skips the test where there is none, or no playwright."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    flags = [f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # it refuses to run as root with one
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page in the browser, and what went wrong there.

    Attributes:
        page: the page.
        complaints: errors and warnings on the console, exceptions, dialogs, and requests to any
            host but 127.0.0.1.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self._developer: Any = None  # a connection to the browser's developer tools
        self.page.set_default_timeout(10_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dialog)
        context.on("request", lambda request: self._requested(request.url))

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"data", "file", "about"} and parts.hostname != "127.0.0.1":
            self.complaints.append(f"request: {url}")

    def show(self, address: str, view: str = "") -> None:
        """Go to a view of a page, or to another address."""
        self.page.goto(f"{address}#/{view}" if view else address)

    def shows(self, text: str, within: str = "main") -> None:
        """Wait until a text is to be seen."""
        self.page.locator(within).get_by_text(text).first.wait_for()

    def overflows(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.body.clientWidth")
        )

    def drawn_colours(self, canvas: str) -> int:
        """How many colours a canvas shows."""
        return int(
            self.page.evaluate(
                """(selector) => {
                  const c = document.querySelector(selector);
                  const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
                  return new Set(new Uint32Array(data.buffer)).size;
                }""",
                canvas,
            )
        )

    def busy_s(self) -> float:
        """The CPU time of the page's main thread until now; the first call begins to count it."""
        if self._developer is None:
            self._developer = self.page.context.new_cdp_session(self.page)
            self._developer.send("Performance.enable")
        metrics = self._developer.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "ThreadTime"))
