"""A headless Chromium for tests of pages: what it shows, what it logs, and what it asks the network for."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

DESKTOP, PHONE = (1280, 900), (390, 844)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVER = ("chromedriver", "chromium.chromedriver")


def _found(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def why_no_browser() -> str | None:
    """What is missing for these tests, in words; None when they can run."""
    if not _found(CHROMIUM):
        return "no Chromium on the path: install chromium"
    if not _found(DRIVER):
        return "no chromedriver on the path: install chromium-driver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install -e '.[browser]'"
    return None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium that reaches this machine only; it ends with the context.

    Raises:
        RuntimeError: Something for it is missing, see `why_no_browser`.
    """
    if missing := why_no_browser():
        raise RuntimeError(missing)
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = _found(CHROMIUM) or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--no-first-run",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        # Whatever a page asks for by name is not found, rather than fetched.
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
        # Chromium's sandbox does not start as root.
        *(("--no-sandbox",) if os.geteuid() == 0 else ()),
    ):
        options.add_argument(argument)
    # With both paths given, Selenium looks for nothing and downloads nothing.
    driver = Chrome(options=options, service=ChromeService(_found(DRIVER)))
    driver.set_script_timeout(30)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A browser window.

    Attributes:
        driver: Selenium's driver, for what is not here.
    """

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._logs: list[dict[str, Any]] = []
        self._requests: list[str] = []

    def open(
        self, page: Path | str, *, size: tuple[int, int] = DESKTOP, dark: bool = False, print_: bool = False
    ) -> None:
        """Open a file or an address in a window of `size`; what earlier pages logged is forgotten.

        Args:
            page: Path of a file, or a URL.
            size: Width and height of the window in CSS pixels.
            dark: Whether the reader prefers dark colours.
            print_: Whether it is laid out as if printed.
        """
        self.driver.get("about:blank")
        self.resize(*size)
        self.media(dark=dark, print_=print_)
        self._collect()
        self._logs, self._requests = [], []
        self.driver.get(page.resolve().as_uri() if isinstance(page, Path) else page)

    def resize(self, width: int, height: int) -> None:
        """Give the page a window of this size, which may be narrower than a real window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, *, dark: bool = False, print_: bool = False) -> None:
        """What the reader prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        emulated = {"media": "print" if print_ else "", "features": [feature]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)

    def all(self, css: str) -> list[WebElement]:
        """The elements that a CSS selector finds, in the page's order."""
        return self.driver.find_elements("css selector", css)

    def one(self, css: str) -> WebElement:
        """The only element that a CSS selector finds.

        Raises:
            AssertionError: There are none or several.
        """
        found = self.all(css)
        assert len(found) == 1, f"{css} finds {len(found)} elements"
        return found[0]

    def visible(self, css: str) -> list[WebElement]:
        """The elements that a CSS selector finds and that are shown."""
        return [element for element in self.all(css) if element.is_displayed()]

    def texts(self, css: str) -> list[str]:
        """Text of the elements that a CSS selector finds, shown or not."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", css
        )
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; its arguments are `arguments[0]` and so on."""
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is; see `selenium.webdriver.Keys`."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def hover(self, element: WebElement) -> None:
        """Move the pointer onto an element."""
        from selenium.webdriver import ActionChains

        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def choose(self, select: str, value: str) -> None:
        """Choose the option with this value of the `<select>` that a CSS selector finds."""
        from selenium.webdriver.support.select import Select

        Select(self.one(select)).select_by_value(value)

    def style(self, css: str, name: str) -> str:
        """A computed style property of the first element found."""
        found: str = self.run(
            "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])",
            css,
            name,
        )
        return found

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window; nothing to scroll sideways: 0."""
        root = "document.documentElement"
        found: int = self.run(
            f"return Math.max({root}.scrollWidth, document.body.scrollWidth) - {root}.clientWidth"
        )
        return found

    @property
    def complaints(self) -> list[str]:
        """Warnings and errors in the console since the page was opened, uncaught exceptions among them."""
        self._collect()
        return [entry["message"] for entry in self._logs if entry["level"] in ("WARNING", "SEVERE")]

    @property
    def requests(self) -> list[str]:
        """Every address asked for since the page was opened, its own first; data: addresses are cut short."""
        self._collect()
        return list(self._requests)

    def external_requests(self) -> list[str]:
        """The addresses among `requests` that are neither files, data, nor on this machine."""
        here = ("file:", "data:", "blob:", "about:", "http://localhost", "http://127.0.0.1")
        return [url for url in self.requests if not url.startswith(here)]

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """Write a picture of the whole page, or of what is in the window."""
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole}
            | ({"clip": self._whole()} if whole else {}),
        )  # fmt: skip
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _whole(self) -> dict[str, float]:
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _collect(self) -> None:
        """Take what the browser has logged; it hands each entry over once."""
        self._logs += self.driver.get_log("browser")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                self._requests.append(url[:80] if url.startswith("data:") else url)
