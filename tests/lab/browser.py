"""A real browser: Debian's Chromium, driven by Playwright from PyPI under `build/lab/playwright`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from subprocess import run
from typing import Any

from lab.cluster.machine import BUILD, ROOT, ensure_packages, locked, program, step

BROWSER_PACKAGES = ("chromium", "fonts-dejavu-core")
PLAYWRIGHT = ("playwright==1.65.2", "greenlet==3.5.6")
DIRECTORY = BUILD / "playwright"
SCHEMES = ("light", "dark")
PICTURES = ROOT / "docs" / "assets"
LARGEST_PICTURE = 200_000
"""Bytes of a picture that is kept."""

CONTRAST = """
() => {
  const channels = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = color => {
    const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = color.map(part => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement)
      layers.push(channels(getComputedStyle(at).backgroundColor));
    const canvas = channels(getComputedStyle(document.body).backgroundColor);
    return layers.reverse().reduce((below, top) => over(top, below), canvas);
  };
  const spans = () => channels(getComputedStyle(document.querySelector('.span') || document.body).fill);
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const style = getComputedStyle(element), below = behind(element);
    const texts = [...element.childNodes].some(each => each.nodeType === 3 && each.textContent.trim());
    const drawn = element.matches('.data, .dot');
    if (!texts && !drawn) continue;
    const paint = drawn ? (element.matches('.dot') ? style.fill : style.stroke)
      : element.ownerSVGElement ? style.fill : style.color;
    const grounds = drawn ? [below, over(spans(), below)] : [below];
    found.push({
      what: (element.textContent.trim() || element.getAttribute('class')).slice(0, 60),
      ratio: Math.min(...grounds.map(ground => ratio(over(channels(paint), ground), ground))),
      least: drawn ? 3 : 4.5,
    });
  }
  return found;
}
"""
"""Contrast of each text and line with what is behind it, and the least of WCAG 2.2 (1.4.3 AA, 1.4.11)."""
TOO_WIDE = """
() => {
  const end = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > end) found.push('the page scrolls sideways');
  for (const element of document.querySelectorAll('body *')) {
    const box = element.getBoundingClientRect(), plot = element.ownerSVGElement;
    const bounds = plot ? plot.getBoundingClientRect() : { left: 0, right: end };
    if (element.closest('.wide') && !element.matches('.wide')) continue;
    if (box.right > bounds.right + 0.5 || box.left < bounds.left - 0.5)
      found.push(`${element.tagName}: ${element.textContent.slice(0, 60)}`);
  }
  return found;
}
"""
"""What leaves the page or its plot; the inside of a table may scroll by itself."""
SCROLLS = """
() => [...document.querySelectorAll('body *')].filter(
  each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX === 'auto'
).map(each => each.tabIndex)
"""
"""The tab index of each element that scrolls sideways."""
FOCUSED = """
() => {
  const at = document.activeElement, style = getComputedStyle(at);
  return {
    top: at.getBoundingClientRect().top + scrollY,
    name: at === document.body ? '' : at.getAttribute('aria-label') || at.textContent.slice(0, 60),
    outline: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth),
  };
}
"""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a browser finds on a page, at one width and in one scheme of colours."""

    problems: Sequence[str]
    """Of the console, of scripts, and each request for anything but the page."""
    too_wide: Sequence[str]
    contrasts: Sequence[dict[str, Any]]
    scroll_tab_indices: Sequence[int]
    focused: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """Each place that the Tab key reaches, in this order."""


def ensure_browser() -> None:
    """Install Chromium and what drives it where they are missing; half a minute."""
    ensure_packages(BROWSER_PACKAGES)
    with locked(DIRECTORY.with_suffix(".lock")):
        if not (DIRECTORY / "playwright").exists():
            with step(f"installing {PLAYWRIGHT[0]}"):
                pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
                run([*pip, "--no-deps", "--target", str(DIRECTORY), *PLAYWRIGHT], check=True)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start Chromium without a window; Playwright's `Browser`."""
    ensure_browser()
    sys.path.append(str(DIRECTORY))
    try:
        sync_playwright = import_module("playwright.sync_api").sync_playwright
    finally:
        sys.path.remove(str(DIRECTORY))
    with sync_playwright() as playwright:
        # Without a sandbox: it needs user namespaces, which root in a container has not. The pages are ours.
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


def look_at(browser: Any, file: Path, width: int, scheme: str) -> Looked:
    """Open a page and return what is found on it."""
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        page, problems = context.new_page(), []
        page.on("console", lambda each: problems.append(f"console: {each.text}"))
        page.on("pageerror", lambda each: problems.append(f"script: {each}"))
        page.on("request", lambda each: problems.append(f"request: {each.url}"))
        page.goto(file.as_uri())
        assert problems.pop(0) == f"request: {file.as_uri()}"
        return Looked(
            problems,
            page.evaluate(TOO_WIDE),
            page.evaluate(CONTRAST),
            page.evaluate(SCROLLS),
            list(_tab_through(page)),
        )


def _tab_through(page: Any) -> Iterator[dict[str, Any]]:
    for _ in range(100):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if not found["name"]:
            return
        yield found


def take_picture(browser: Any, page: Path, file: Path, size: tuple[int, int], scheme: str) -> int:
    """Keep what a window of a size shows first as PNG; returns its bytes. A height of 0: the whole page."""
    width, height = size
    shape = {"width": width, "height": height or 100}
    with browser.new_context(viewport=shape, color_scheme=scheme) as context:
        shown = context.new_page()
        shown.goto(page.as_uri())
        return len(shown.screenshot(path=str(file), full_page=not height))
