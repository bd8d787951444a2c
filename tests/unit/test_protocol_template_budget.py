"""Templates that mean harm: refused as what they are, within a budget of time and memory."""

from __future__ import annotations

import time
import tracemalloc
from datetime import UTC, datetime

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.gotemplate import Template
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    LabelSet,
)
from gazette_platform.protocol.path_postfix import PathPostfixTemplate

_AT = datetime(2024, 1, 2, 5, 6, 7, tzinfo=UTC)
_MANY = LabelSet.of(*((f"name-{n:05}", "v" * 20) for n in range(5000)))
_SPEC = JournalSpec("a/journal", 3, _MANY, FragmentSpec(1 << 20, stores=("file:///",) * 10))
_FRAGMENT = Fragment("a/journal", 16, 255, bytes(range(20)), CompressionCodec.GZIP)

DIGITS = "9" * 5000

# Each is refused as a spec that is applied, or when a fragment is persisted; never later.
HOSTILE = {
    "wide": f'{{{{printf "%{DIGITS}d" 1}}}}',
    "precise": f'{{{{printf "%.{DIGITS}d" 1}}}}',
    "wide, in other digits": '{{printf "%٣٣٣٣٣٣d" 1}}',
    "number": f"{{{{{DIGITS}}}}}",
    "hexadecimal number": f'{{{{printf "%d" 0x{"f" * 5000}}}}}',
    "float": f"{{{{1e{DIGITS}}}}}",
    "doubling": '{{$a := "x"}}' + '{{$a := printf "%s%s" $a $a}}' * 25,
    "doubling a layout": '{{$a := "Jan2006"}}'
    + '{{$a := .Spool.FirstAppendTime.Format (printf "%s%s" $a $a)}}' * 25,
    "many arguments": '{{$a := printf "%512d" 1}}{{printf "'
    + "%s" * 1000
    + '" '
    + "$a " * 1000
    + "}}",
    "many actions": "{{1}}" * 300_000,
    "many declarations": "{{$a := 1}}" * 100_000,
    "deep parentheses": "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
    "deep blocks": "{{if 1}}" * 1000 + "{{end}}" * 1000,
    "chain of else": "{{if 0}}" + "{{else if 0}}" * 500 + "{{end}}",
    "range": "{{range $.JournalSpec.LabelSet.Labels}}" * 3 + "x" + "{{end}}" * 3,
    "long layouts": '{{$a := printf "%512d" 1}}'
    + "{{$b := $.Spool.FirstAppendTime.Format $a}}{{$b}}" * 150,
    "unclosed": "{{" * 4000,
    "backtracking": "{{" + "1" * 4000 + "z}}",
    "backtracking in a layout": '{{.Spool.FirstAppendTime.Format "'
    + ".0" * 1500
    + "."
    + "0" * 2000
    + '8"}}{{nil}}',
    "long comment": "{{/*" + " " * 8000 + "}}",
}


def outcome(text):
    """What becomes of a spec with this template, and of a fragment that it is evaluated for."""
    return PathPostfixTemplate(text).evaluate(_FRAGMENT, _AT, LabelSet(), _SPEC)


@pytest.mark.parametrize("guard", ["", "{{if .Spool.End}}"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_within_budget(name, guard):
    text = f"{guard}{HOSTILE[name]}{'{{end}}' if guard else ''}"
    tracemalloc.start()
    began = time.process_time()
    problem = ""
    try:
        outcome(text)
    except ValidationError as err:
        problem = str(err)
    finally:
        took_s = time.process_time() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert 0 < len(problem) < 2000, "it is sent in the trailer of a call"
    assert took_s < 4.0  # 0.1 without tracemalloc, on a machine of its own
    assert peak < 16 << 20


def test_numbers_of_64_bits_are_fine():
    assert Template("{{9223372036854775807}}").execute(None) == "9223372036854775807"
    assert Template("{{-9223372036854775808}}").execute(None) == "-9223372036854775808"
    with pytest.raises(ValidationError, match="64 bits"):
        Template("{{9223372036854775808}}")


def test_labels_are_found_by_name_however_many():
    assert outcome('{{.JournalSpec.LabelSet.ValueOf "name-04999"}}') == "v" * 20
    assert outcome('{{.JournalSpec.LabelSet.ValueOf "missing"}}') == ""


def test_variables_are_bounded_while_they_are_in_scope():
    """Each use looks for its own among them."""
    with pytest.raises(ValidationError, match="more than 100 variables"):
        Template("".join(f"{{{{$v{n} := 1}}}}" for n in range(100)))
    assert Template("".join(f"{{{{$v{n} := 1}}}}" for n in range(99))).execute(None) == ""
    in_blocks = "".join(f"{{{{if 1}}}}{{{{$v{n} := 1}}}}{{{{end}}}}" for n in range(200))
    assert Template(in_blocks).execute(None) == ""
