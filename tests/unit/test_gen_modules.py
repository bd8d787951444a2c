"""`tools/gen_modules.py` makes the map of modules out of their docstrings."""

from __future__ import annotations

import pytest

from tools import gen_modules


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Reads journals.", "Reads journals."),
        ("Reads journals. Pure.", "Reads journals."),
        (
            "Reads version 1.2 of files, as `a.b` does.",
            "Reads version 1.2 of files, as `a.b` does.",
        ),
        ("Reads journals of\\nany length.\\n\\nMore.", "Reads journals of any length."),
        ("Reads ``a|b``", "Reads `a\\|b`"),
        ("", ""),
    ],
)
def test_first_sentence_ends_before_the_second(docstring, sentence):
    assert gen_modules.first_sentence(f'"""{docstring}"""\n') == sentence


def test_page_lists_modules_of_nested_packages_and_no_commands():
    page = gen_modules.page()
    assert "| `broker/append/fsm` |" in page
    assert "| **`lake/typed/rows/`** |" in page
    assert "| `cli/gazctl` |" not in page
    assert "\n## cli\n" in page


def test_check_fails_once_the_page_is_stale(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gen_modules, "ROOT", tmp_path)
    monkeypatch.setattr(gen_modules, "PAGE", tmp_path / "modules.md")
    assert gen_modules.main([]) == 0
    assert gen_modules.main(["--check"]) == 0
    gen_modules.PAGE.write_text("old")
    assert gen_modules.main(["--check"]) == 1
    assert "modules.md is stale; run `make gen`" in capsys.readouterr().err
