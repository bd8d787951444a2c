"""The site of the documentation builds without a warning, and shows what the pages hold."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; strict mode ends the build at a link or an anchor that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [ROOT / "tools/docs_site", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def found_by_search(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    return {entry["location"]: entry["text"] for entry in index["docs"]}


def place_of(page: str) -> str:
    return f"{page.removesuffix('README.md').removesuffix('.md').rstrip('/')}/"


@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_page_is_built_and_can_be_searched(site, found_by_search, page):
    (title,) = re.findall(r"\A(?:<!--.*?-->\s*)?# (.+)", (ROOT / page).read_text(), re.DOTALL)[:1]
    html = (site / place_of(page) / "index.html").read_text()
    heading = re.search(r"<h1[^>]*>(.*?)<", html, re.DOTALL)
    assert heading
    assert heading[1].split() == title.splitlines()[0].split()
    assert place_of(page) in found_by_search


@pytest.mark.e2e
def test_blocks_that_tests_run_are_code(site):
    html = (site / "docs/tutorial/own-data/index.html").read_text()
    assert html.count('<div class="highlight"') > 20
    assert "```" not in html


@pytest.mark.e2e
def test_diagrams_are_drawn(site):
    assert '<pre class="mermaid">' in (site / "docs/concepts/lake/index.html").read_text()
