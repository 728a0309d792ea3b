"""The site: its structure depends on no text of strangers, and in a browser it sorts, filters and opens."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from interventions.errors import UserError
from interventions.files import atomic_write
from relbench.commands.leaderboard import leaderboard
from relbench.leaderboards.boards import make_boards
from relbench.leaderboards.build import build
from relbench.leaderboards.charts import axis_end, bar, loss_chart, series, shade
from relbench.leaderboards.serve import make_server
from relbench.leaderboards.site import site
from relbench.tables import Interval
from tests.browser import DESKTOP, PHONE, Browser
from tests.relbench.leaderboards.entries import HOSTILE, english, hostile, two_languages, write

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

PAGES = ("index.html", "relations.html", "models.html", "transfer.html")


class _Structure(HTMLParser):
    """Tags with the names of their attributes, and where links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.links: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.links |= {str(value) for name, value in attrs if name in ("href", "src")}

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment",))


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    return site(make_boards([hostile("plain")]))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_changes_no_tag_no_attribute_and_no_link(text: str, plain: dict[str, str]) -> None:
    files = site(make_boards([hostile(text)]))
    assert files.keys() == plain.keys()
    for name, page in files.items():
        if name.endswith(".html"):
            found, expected = _Structure(page), _Structure(plain[name])
            assert found.tags == expected.tags
            assert found.links == expected.links


def test_pages_load_nothing_but_their_own_two_files_and_no_style_or_script_stands_in_them() -> None:
    for name, page in site(make_boards([english(), two_languages()])).items():
        if not name.endswith(".html"):
            continue
        structure = _Structure(page)
        root = "../" if "/" in name else ""
        scripts = [tag for tag in structure.tags if tag[0] in ("script", "style", "link", "img", "iframe")]
        assert scripts == [("link", "rel", "href"), ("script", "src", "defer")]
        assert {f"{root}style.css", f"{root}board.js"} <= structure.links
        assert not [tag for tag in structure.tags if {"style", "onclick", "onload"} & set(tag[1:])]
        assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_every_link_between_pages_leads_somewhere() -> None:
    files = site(make_boards([english(), two_languages()]))
    for name, page in files.items():
        if name.endswith(".html"):
            for link in _Structure(page).links - {"#content", "https://example.org/a"}:
                target = (Path(name).parent / link).as_posix()
                assert target.replace("submissions/../", "") in files


def test_bars_by_hand() -> None:
    drawn = bar(0.1, Interval(0.05, float("inf")), end=0.25, mark=0.2)
    assert drawn is not None
    assert (drawn.at, drawn.low, drawn.high, drawn.mark, drawn.beyond) == (
        "40.0",
        "20.0",
        "100.0",
        "80.0",
        True,
    )
    assert bar(None, Interval(float("inf"), float("inf"))) is None
    reaching = bar(None, Interval(0.5, float("inf")))
    assert reaching is not None and (reaching.at, reaching.low) == (None, "50.0")
    assert [axis_end(values) for values in ([0.02], [0.2], [0.26], [0.9], [])] == [0.1, 0.25, 0.5, 1.0, 1.0]
    assert [shade(share) for share in (-0.2, 0.0, 0.5, 1.0, 3.0)] == ["h0", "h0", "h5", "h10", "h10"]


def test_every_method_looks_different_and_its_curve_begins_at_nothing() -> None:
    looks = series([f"m{number}" for number in range(20)], "random")
    assert len(set(looks.values())) == 21
    ((section, entries),) = make_boards([english()]).methods.items()
    assert section.languages == ("en",)
    chart = loss_chart(entries, series((entry.name for entry in entries), "random"))
    assert chart is not None
    good = next(line for line in chart.lines if line.name == "good")
    # Off-target losses go up to .2, so that the axis ends at a quarter: target .5 and 1, off-target .1 and .2.
    width, height = chart.right - chart.left, chart.bottom - chart.top
    corners = [tuple(map(float, corner.split(","))) for corner in good.corners.split()]
    assert corners == [
        (chart.left, chart.bottom),
        (chart.left + width * 0.5, pytest.approx(chart.bottom - height * 0.4, abs=0.1)),
        (chart.right, pytest.approx(chart.bottom - height * 0.8, abs=0.1)),
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboards folder whose boards are built."""
    folder = tmp_path_factory.mktemp("site") / "leaderboards"
    write(english(), folder)
    write(two_languages(), folder)
    build(folder)
    return folder


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with make_server(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_site_is_served_to_this_machine_only_and_nothing_beside_it(address: str, root: Path) -> None:
    with urllib.request.urlopen(f"{address}/") as answer:
        assert answer.read() == (root / "site" / "index.html").read_bytes()
    for path in ("/../README.md", "/%2e%2e/README.md", "/submissions/", "/none.html"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address + path)
        assert refused.value.code == 404
        refused.value.close()
    with make_server(root, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_serving_needs_a_site_and_a_free_port(root: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(UserError, match="build"):
        make_server(tmp_path, 0)
    with pytest.raises(UserError, match="--port"):
        make_server(root, int(address.rpartition(":")[2]))
    done = CliRunner().invoke(leaderboard, ["serve", str(tmp_path)])
    assert isinstance(done.exception, UserError)


def _shown(browser: Browser, css: str) -> list[str]:
    return [element.text for element in browser.visible(css)]


def _rows(browser: Browser) -> list[tuple[str | None, str | None]]:
    return [
        (row.get_attribute("data-method"), row.get_attribute("data-language"))
        for row in browser.visible("tbody tr[data-model]")
    ]


@pytest.mark.browser
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_a_phone_complain_about_nothing_and_ask_nobody(
    browser: Browser, root: Path, address: str, page: str
) -> None:
    for place in (root / "site" / page, f"{address}/{page}"):
        for size in (DESKTOP, PHONE):
            for dark in (False, True):
                browser.open(place, size=size, dark=dark)
                for opener in browser.visible("a.open")[:1]:
                    opener.click()
                assert browser.visible(".detail")
                assert browser.overflow == 0
                assert browser.complaints == []
                assert browser.external_requests() == []
                names = [url.rpartition("/")[2] for url in browser.requests]
                assert {name for name in names if name != "favicon.ico"} == {page, "style.css", "board.js"}


@pytest.mark.browser
def test_dark_is_dark(browser: Browser, root: Path) -> None:
    def brightness() -> int:
        colour = browser.style("body", "background-color")
        return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")))

    browser.open(root / "site" / "index.html")
    assert brightness() > 700
    browser.open(root / "site" / "index.html", dark=True)
    assert brightness() < 150


@pytest.mark.browser
def test_rows_are_filtered_and_the_choice_is_in_the_address(browser: Browser, root: Path) -> None:
    page = root / "site" / "index.html"
    browser.open(page)
    # All languages together, at first; with one language alone that is English too.
    assert _rows(browser) == [
        ("good", "all en"), ("poor", "all en"), ("random", "all en"), ("good", "all"), ("random", "all"),
    ]  # fmt: skip
    browser.choose("[data-filter=language]", "en")
    assert _rows(browser)[3:] == [("good", "en"), ("random", "en")]
    browser.choose("[data-filter=method]", "poor")
    assert _rows(browser) == [("poor", "all en")]
    assert _shown(browser, "section.board h2") == ["made-up act units"]
    assert _shown(browser, ".count") == ["1 of 9 shown"]
    address = browser.driver.current_url
    assert address.endswith("#method=poor&language=en")
    browser.open(address)
    assert _rows(browser) == [("poor", "all en")]
    browser.choose("[data-filter=language]", "de")
    assert _rows(browser) == []
    browser.open(root / "site" / "relations.html")
    browser.choose("[data-filter=relation]", "thing_color")
    browser.choose("[data-filter=model]", "made-up")
    assert set(_shown(browser, "tbody tr[data-model] th")) == {"thing color"}


@pytest.mark.browser
def test_tables_are_sorted_with_what_is_missing_last(browser: Browser, root: Path) -> None:
    browser.open(root / "site" / "index.html")
    heading = browser.all("thead th")[2]
    button = heading.find_element("css selector", "button")

    def methods() -> list[str | None]:
        return [method for method, _ in _rows(browser)[:3]]

    button.click()
    assert (methods()[0], heading.get_attribute("aria-sort")) == ("good", "ascending")
    button.click()
    # The other two do not reach half and have no number to be sorted by.
    assert (methods()[0], heading.get_attribute("aria-sort")) == ("good", "descending")
    by_name = browser.all("thead th")[1].find_element("css selector", "button")
    by_name.click()
    by_name.click()
    assert methods() == ["random", "poor", "good"]
    assert heading.get_attribute("aria-sort") is None


@pytest.mark.browser
def test_a_row_opens_to_its_provenance_and_command_by_keyboard_too(browser: Browser, root: Path) -> None:
    from selenium.webdriver import Keys

    browser.open(root / "site" / "index.html")
    opener: WebElement = browser.all("a.open")[1]
    browser.run("arguments[0].focus()", opener)
    browser.press(Keys.SPACE)
    assert opener.get_attribute("aria-expanded") == "true"
    assert _shown(browser, ".detail .command code") == ["relbench sweep english.yaml -o english"]
    # Of the methods only the row's own.
    assert [title for title in _shown(browser, ".detail h4") if title.startswith("Method")] == ["Method poor"]
    said = browser.one(".detail").text
    for part in ("A. Person", "CC-BY-4.0", english().data_version, english().samples.sha256, "torch 2.9.0"):
        assert part in said
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.closest('.detail') !== null")
    browser.run("arguments[0].focus()", opener)
    browser.press(Keys.ENTER)
    assert not browser.all(".detail")
    assert opener.get_attribute("aria-expanded") == "false"
    browser.driver.execute_script("window.scrollTo(0, 0)")
    browser.press(Keys.ENTER)
    browser.all("thead th")[1].find_element("css selector", "button").click()
    # The opened part stays with its row.
    assert (
        browser.run("return document.querySelector('.detail').previousElementSibling.dataset.method")
        == "poor"
    )


@pytest.mark.browser
def test_without_scripts_everything_is_there_and_names_lead_to_pages(browser: Browser, root: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(root / "site" / "index.html")
        rows = browser.driver.find_elements("css selector", "tbody tr")
        assert len(rows) == 9
        link = browser.driver.find_element("css selector", "a.open").get_attribute("href")
        browser.open(str(link))
        assert "relbench sweep english.yaml -o english" in browser.driver.page_source
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.browser
def test_hostile_names_run_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    # The schema refuses such names in most places already; the site does not count on that.
    texts = ("<script>document.title='run'</script>", '"><img src=x onerror=document.title="run">')
    named = [replace(hostile(text), id=f"hostile-{number}") for number, text in enumerate(texts)]
    for name, content in site(make_boards(named)).items():
        with atomic_write(tmp_path / name) as file:
            file.write(content)
    for page in PAGES:
        browser.open(tmp_path / page)
        for opener in browser.visible("a.open"):
            opener.click()
        assert browser.driver.title.endswith("relbench leaderboards")
        assert browser.complaints == []
        if page != "transfer.html":
            assert "onerror=" in browser.one("main").text
