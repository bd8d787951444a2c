"""What MkDocs has to know about our Markdown: words after the language of a fenced block are for `make docs`."""

from __future__ import annotations

import re
from typing import Any

_INFO = re.compile(r"^( *```\w+) .*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page without those words, such as `run` in "bash run": MkDocs would take the block for text."""
    return _INFO.sub(r"\1", markdown)
