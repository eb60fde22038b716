"""The page in a real browser: headless Chromium, where there is one."""

import pytest

from tests.report.browser import Browser, found

if found() is None:
    pytest.skip("no Chromium here: on Debian `apt-get install chromium` brings it", allow_module_level=True)

LIGHT, DARK = "rgb(252, 252, 251)", "rgb(18, 20, 23)"
PAPER = "getComputedStyle(document.body).backgroundColor"
INK = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(params=["run", "contest"])
def page(request, browser):
    """A page, open and drawn."""
    folder = request.getfixturevalue(request.param)
    if request.param == "contest":
        from srt_peft.report.page import write

        write(folder)
    browser.size(1400, 1000)
    browser.system(dark=False)
    browser.open(folder / "report.html")
    return browser


def test_it_opens_without_a_complaint_and_asks_for_nothing(page):
    """No error, no warning, no breach of its policy, no request but for the file itself; each picture is drawn."""
    assert page.complaints() == []
    assert [url.rpartition("/")[2] for url in page.loaded()] == ["report.html"]
    assert page.run("document.querySelectorAll('.plot .main-svg').length > 0")
    assert page.run("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.trace'))")
    assert page.run("typeof window.bad") == "undefined"


def test_it_may_not_ask_for_anything(page):
    """The policy holds even for a script of its own."""
    asked = page.run("fetch('https://example.org/').then(() => 'answered', () => 'refused')")
    assert asked == "refused"
    assert any("Content Security Policy" in told for told in page.complaints())
    assert [url.rpartition("/")[2] for url in page.loaded()] == ["report.html"]


def test_pointing_shows_values(page):
    """In each picture, where its first point lies."""
    for name in page.run("[...document.querySelectorAll('.plot')].map(plot => plot.id)"):
        page.run(f"document.getElementById('{name}').scrollIntoView({{block: 'center'}})")
        place = page.run(
            f"(() => {{ const p = document.getElementById('{name}'), t = p._fullData[0], a = p._fullLayout,"
            "  b = p.querySelector('.plotly .nsewdrag').getBoundingClientRect(),"
            "  i = t.y.findIndex(v => v !== null && !Number.isNaN(v));"
            "  return [b.x + a.xaxis.d2p(t.x[i]), b.y + Math.min(a.yaxis.d2p(t.y[i]) + 2, b.height - 3)]; })()"
        )
        page.point(place[0] + 40, place[1])
        page.point(*place)
        told = page.until(
            f"[...document.querySelectorAll('#{name} .hoverlayer text')].map(t => t.textContent).join(' ')"
        )
        assert any(c.isdigit() for c in told), name


def test_the_page_follows_the_system_and_its_button(page):
    """The pictures' ink goes with it."""
    assert page.run(PAPER) == LIGHT
    page.system(dark=True)
    page.until(f"{PAPER} === '{DARK}'")
    page.until("document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    page.run("document.getElementById('theme').click()")
    assert page.run(PAPER) == LIGHT
    assert page.run("document.getElementById('theme').textContent") == "Dark page"
    page.system(dark=False)
    page.run("document.getElementById('theme').click()")
    assert page.run(PAPER) == DARK
    page.until(f"{INK} === 'rgb(230, 232, 235)'")


def test_a_legend_takes_no_room_from_its_picture(page):
    """On a phone, where each name has a line of its own, the picture grows by them."""
    page.size(390, 900)
    page.until("window.innerWidth === 390")
    heights = "[...document.querySelectorAll('.nsewdrag')].map(area => area.getBoundingClientRect().height)"
    page.until(f"{heights}.length === document.querySelectorAll('.plot').length && Math.min(...{heights}) > 150")


@pytest.mark.parametrize("width", [420, 1400])
def test_it_is_as_wide_as_its_window(page, width):
    """Tables scroll by themselves; the page does not, to the side."""
    page.size(width, 900)
    page.until(f"window.innerWidth === {width}")
    page.until(
        "[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg').clientWidth <= p.clientWidth)"
    )
    assert page.run("document.documentElement.scrollWidth") <= width
