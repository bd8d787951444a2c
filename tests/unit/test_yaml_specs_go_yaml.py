"""YAML in the bytes of Gazette's tools: the expected texts are what their library, yaml.v2 2.4, wrote."""

import pytest
from hypothesis import given, strategies as st

from gazette_platform.yaml_specs.documents import dump_yaml, read_yaml

_DATE = '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
_HOUR = '{{ .Spool.FirstAppendTime.Format "15" }}'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            f"date={_DATE}/hour={_HOUR}",
            (
                'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{\n'
                '    .Spool.FirstAppendTime.Format "15" }}'
            ),
        ),
        (
            f"{_DATE}/hour={_HOUR}/x={{{{ .Spool.End }}}}",
            (
                '\'{{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{\n'
                '    .Spool.FirstAppendTime.Format "15" }}/x={{ .Spool.End }}\''
            ),
        ),
        (
            f"a\t{_DATE}/hour={{{{  .Spool.FirstAppendTime.Format}}}}",
            (
                '"a\\t{{ .Spool.FirstAppendTime.Format \\"2006-01-02\\" }}/hour={{\n'
                '    \\ .Spool.FirstAppendTime.Format}}"'
            ),
        ),
        ("x" * 200, "x" * 200),
        ("one\n two ", '"one\\n two "'),
        ("one\ntwo\n", "|\n    one\n    two"),
        ("2020-1-2", '"2020-1-2"'),
        ("2020-1-2x", "2020-1-2x"),
        ("1_0", '"1_0"'),
        ("*", "'*'"),
        ("\U0001d49c", '"\\U0001D49C"'),
        ("é日", "é日"),
    ],
)
def test_text_is_folded_and_quoted_as_there(text, written):
    document = {"fragment": {"path_postfix_template": text}}
    assert dump_yaml(document) == f"fragment:\n  path_postfix_template: {written}\n"


def test_lists_and_numbers():
    document = {"labels": [{"name": "a", "value": ""}], "length": 1, "delete": True, "suspend": {}}
    assert dump_yaml(document) == (
        'labels:\n- name: a\n  value: ""\nlength: 1\ndelete: true\nsuspend: {}\n'
    )


@given(st.text(max_size=200) | st.text("ab \n\t{}\"'\\:#-é\u2028\x85\ufeff", max_size=200))
def test_what_is_written_is_read_back(text):
    assert read_yaml(dump_yaml({"one": {"two": text}})).mapping("one").text("two") == text
    last = read_yaml(dump_yaml({"labels": [text, text]}))
    assert last.texts("labels") == (text, text)
