"""A headless browser without a GPU, which opens a page and says what became of it."""

import shutil

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SOFTWARE = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")
FIGURE = "document.querySelector('figure')"
PATIENCE = 120_000  # milliseconds; a busy machine takes its time to draw without a GPU
NEXT_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 300))))"


def open_page(page, *flags, script=""):
    """What a page with something to turn is once it came to rest: the attributes of its figure, its title, all of it.

    The script runs once the figure is drawn, which it calls ``figure``.
    """
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here: make env")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", *flags])
        tab = browser.new_page(viewport={"width": 400, "height": 300})
        tab.set_default_timeout(PATIENCE)
        tab.goto(page.as_uri())
        # By selectors: functions to wait for would be evaluated by the page, whose policy refuses that.
        tab.wait_for_selector("figure[data-state=drawn], figure[data-state=failed]", state="attached")
        if script:
            tab.wait_for_selector("figure[data-state=drawn]", state="attached")
            tab.evaluate(f"() => {{ const figure = {FIGURE}; {script} }}")
            tab.evaluate(f"() => {NEXT_FRAMES}")
        state = tab.evaluate(f"() => ({{...{FIGURE}.dataset}})")
        found = state, tab.title(), tab.content()
        browser.close()
    return found
