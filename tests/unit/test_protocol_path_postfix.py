"""Path postfix templates: what they see, what they compute, what they refuse."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalFlag,
    JournalSpec,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.path_postfix import PathPostfixTemplate, format_time

_AT = datetime(2024, 1, 2, 5, 6, 7, 890_000, tzinfo=UTC)
_SPEC = JournalSpec(
    "a/journal",
    3,
    LabelSet.of(("kind", "x"), ("tag", "1"), ("tag", "2")),
    FragmentSpec(
        1 << 20,
        CompressionCodec.GZIP,
        ("s3://a/b/", "gs://c/d/"),
        300 * 10**9,
        flush_interval_ns=3600 * 10**9,
    ),
    JournalFlag.O_RDWR,
    suspend=SuspendSpec(SuspendLevel.PARTIAL, 7),
)
_FRAGMENT = Fragment("a/journal", 16, 255, bytes(range(20)), CompressionCodec.GZIP)
_REGISTERS = LabelSet.of(author="me")


def _evaluate(text: str) -> str:
    return PathPostfixTemplate(text).evaluate(_FRAGMENT, _AT, _REGISTERS, _SPEC)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", ""),
        ("plain/text", "plain/text"),
        (
            (
                'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
                '/hour={{ .Spool.FirstAppendTime.Format "15" }}'
            ),
            "date=2024-01-02/hour=05",
        ),
        ("{{.Spool.FirstAppendTime.Unix}}", "1704171967"),
        ("{{.Spool.FirstAppendTime}}", "2024-01-02 05:06:07.89 +0000 UTC"),
        ("{{.Spool.FirstAppendTime.Year}}-{{.Spool.FirstAppendTime.Day}}", "2024-2"),
        ("{{.Spool.FirstAppendTime.Month}}/{{.Spool.FirstAppendTime.Weekday}}", "January/Tuesday"),
        ('{{printf "%02d" .Spool.FirstAppendTime.Month}}', "01"),
        ("{{.Spool.Journal}}:{{.Spool.Begin}}:{{.Spool.End}}", "a/journal:16:255"),
        ("{{.Spool.Fragment.End}}{{.End}}{{.FirstAppendTime.Hour}}", "2552555"),
        ("{{.Spool.CompressionCodec}}", "GZIP"),
        ("{{.Spool.ContentLength}}", "239"),
        ("{{.Spool.Sum.IsZero}}", "false"),
        ('{{.Spool.Registers.ValueOf "author"}}', "me"),
        ("{{.JournalSpec.Name}}{{.Name}}", "a/journala/journal"),
        ('{{.JournalSpec.LabelSet.ValueOf "kind"}}{{.JournalSpec.ValueOf "kind"}}', "xx"),
        ("{{.JournalSpec.Flags}}{{.JournalSpec.Replication}}", "O_RDWR3"),
        ("{{.JournalSpec.Fragment.RefreshInterval}}", "5m0s"),
        ('{{.JournalSpec.LabelSet.ValueOf "tag"}}{{.JournalSpec.ValueOf "none"}}', "1"),
        ("nanos={{ .Spool.FirstAppendTime.Nanosecond }}", "nanos=890000000"),
        ("foo={{ .Spool.Begin }}", "foo=16"),
        ("{{if .JournalSpec.Suspend}}{{.JournalSpec.Suspend.Level}}{{end}}", "PARTIAL"),
    ],
)
def test_what_templates_see(template, expected):
    assert _evaluate(template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a {{- `b` -}} c", "abc"),
        ("a\n\t {{- /* comment */ -}} \n b", "ab"),
        ("a{{/* comment\n}} */}}b", "ab"),
        ("a {{/* x */}} b", "a  b"),
        ("{{ -3 }}{{- 15 }}{{ +4 }}{{ 0 }}", "-31540"),
        ('{{ "q\\"\\t\\\\日" }}', 'q"\t\\日'),
        ("{{ true }}{{ not true }}", "truefalse"),
        ('{{ "a" | printf "%s-%s" "b" }}', "b-a"),
        ('{{ "2006" | .Spool.FirstAppendTime.Format | printf "<%s>" }}', "<2024>"),
        ("{{ (.Spool.FirstAppendTime).Unix }}", "1704171967"),
        ('{{ (printf "%d" .Spool.Begin) | eq `16` }}', "true"),
        ("{{ $x := .Spool }}{{ $x.Begin }}{{ $.Spool.End }}", "16255"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 3 }}{{ $x }}{{ end }}{{ $x }}", "31"),
        ("{{ if false }}a{{ else if true }}b{{ else }}c{{ end }}", "b"),
        ("{{ if 0 }}a{{ else if `` }}b{{ else }}c{{ end }}", "c"),
        ("{{ if $y := .Spool.Begin }}{{ $y }}{{ else }}{{ $y }}{{ end }}", "16"),
        ("{{ if and (eq .Spool.CompressionCodec 2) (gt .Spool.End 10) }}y{{ end }}", "y"),
        ("{{ and 0 .Spool.Nope }}", "0"),
        ("{{ or `` `b` `c` }}{{ and 1 2 }}{{ or 0 `` }}", "b2"),
        ("{{ 1 | or 0 }}{{ 0 | and 1 }}", "10"),
        ("{{ eq 1 2 3 1 }}{{ ne 1 2 }}", "truetrue"),
        ("{{ lt 1 2 }}{{ le 2 2 }}{{ gt `b` `a` }}{{ ge 10 15 }}", "truetruetruefalse"),
        ("{{ eq `a` `a` }}{{ eq true false }}", "truefalse"),
        ("{{ eq .JournalSpec.Suspend nil }}{{ eq nil nil }}", "falsetrue"),
        ("{{ not nil }}", "true"),
    ],
)
def test_the_language(template, expected):
    assert _evaluate(template) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('"%d%%" 5', "5%"),
        ('"%05d|%-5d|%5d|%+d" 42 42 42 42', "00042|42   |   42|+42"),
        ('"%05d" -42', "-0042"),
        ('"%x %X" 255 255', "ff FF"),
        ('"%s|%5s|%-5s|%.2s" "abc" "abc" "abc" "abc"', "abc|  abc|abc  |ab"),
        ('"%q" "a\\"b"', '"a\\"b"'),
        ('"%v %v %v" 1 "x" true', "1 x true"),
        ('"%s" .Spool.CompressionCodec', "GZIP"),
        ('"%d" .Spool.CompressionCodec', "2"),
    ],
)
def test_printf(arguments, expected):
    template = PathPostfixTemplate(f"{{{{ printf {arguments} }}}}")
    assert template.evaluate(_FRAGMENT, _AT, _REGISTERS, _SPEC) == expected


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{", "unclosed action"),
        ("{{ `abc }}", "unterminated quoted string"),
        ('{{ "abc }}', "unterminated quoted string"),
        ("{{/* abc }}", "unclosed comment"),
        ("{{/* abc */ x }}", "comment ends before closing delimiter"),
        ("{{ / }}", "unexpected '/' in action"),
        ('{{ printf "%v" .Spool }}', "Spool is a struct"),
        ("{{}}", "missing value for command"),
        ("{{ if }}{{ end }}", "missing value for command"),
        ("{{ 1 | }}", "missing value for command"),
        ("{{ 1 | 2 }}", "non executable command in pipeline"),
        ("{{ if true }}", "a block is not closed by end"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("{{ if true }}{{ else }}{{ else }}{{ end }}", "unexpected {{else}}"),
        ("{{ if true }}{{ else with 1 }}{{ end }}", "unexpected 'with' in action"),
        ("{{ if true }}{{ end 1 }}", "unexpected '1' in action"),
        ("{{ (1 }}", "unclosed left paren"),
        ("{{ ) }}", "missing value for command"),
        ("{{ 1 , 2 }}", "unexpected ',' in operand"),
        ("{{ ($x := 1) }}", "a variable cannot be declared within parentheses"),
        ("{{ $x }}", 'undefined variable "$x"'),
        ("{{ $x := 1 }}{{ $x = 2 }}", "assignment by = is not supported"),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", 'undefined variable "$x"'),
        ("{{ foo }}", 'function "foo" not defined'),
        ("{{ `a`.Len }}", "unexpected .Len after operand"),
        ("{{ 3x }}", "'3x' is not supported: write numbers as decimal integers"),
        ("{{ 1.5 }}", "'1.5' is not supported"),
        ("{{ 0x1F }}", "'0x1F' is not supported"),
        ("{{ 017 }}", "'017' is not supported"),
        ("{{ 'x' }}", "is not supported: write numbers"),
        ('{{ "\\u65e5" }}', "escape \\u is not supported"),
        ("{{ define `x` }}{{ end }}", "define is not supported"),
        ("{{ template `x` }}", "template is not supported"),
        ("{{ range .Stores }}{{ end }}", "range is not supported (supported are fields, methods,"),
        ("{{ with .Spool }}{{ end }}", "with is not supported"),
        ("{{ len `abc` }}", "len is not supported"),
        ("{{ print 1 }}", "print is not supported"),
        ('{{ printf "%c" 65 }}', "unknown verb '%c' (known are %s %q %d %x %X %v)"),
        ('{{ printf "%q" 1 }}', "%q cannot format a int"),
        ("{{ nil }}", "nil is not a command"),
        ("{{ .Spool.Nope }}", "can't evaluate field Nope in type Spool"),
        ("{{ .Spool.Journal.Nope }}", "can't evaluate field Nope in type string"),
        (
            "{{ .Spool.CompressionCodec.Nope }}",
            "can't evaluate field Nope in type CompressionCodec",
        ),
        ("{{ .Fragment }}", "ambiguous field Fragment"),
        ("{{ .Spool }}", "Spool is a struct, name one of its fields"),
        ("{{ .JournalSpec.Suspend.Level }}", "nil pointer evaluating Level"),
        ("{{ .Spool.FirstAppendTime.Format }}", "wrong number of args for Format: want 1 got 0"),
        ("{{ .Spool.FirstAppendTime.Format 3 }}", "expected string; got int"),
        ("{{ .Spool.Begin 1 }}", "Begin has arguments but cannot be invoked as function"),
        ("{{ 1 2 }}", "can't give argument to non-function"),
        ("{{ eq 1 `a` }}", "incompatible types for comparison (int and string)"),
        ("{{ eq .Spool.Registers 1 }}", "invalid type for comparison (LabelSet)"),
        ("{{ lt true false }}", "invalid type for comparison by lt (bool)"),
        ("{{ eq 1 }}", "wrong number of args for eq: want at least 2 got 1"),
        ("{{ not 1 2 }}", "wrong number of args for not: want 1 got 2"),
        ("{{ and }}", "wrong number of args for and"),
        ('{{ printf "%d" `x` }}', "%d cannot format a string"),
        ('{{ printf "%s" 3 }}', "%s cannot format a int"),
        ('{{ printf "%d" }}', "no argument for %d"),
        ('{{ printf "%d" 1 2 }}', "1 arguments too many"),
        ('{{ printf "%y" 1 }}', "unknown verb '%y'"),
        ('{{ printf "%" }}', "unknown verb '%'"),
        ('{{ printf "%999999999d" 1 }}', "is wider than 512"),
        ("{{ printf 3 }}", "printf needs a format string"),
        ("{{ " + "(" * 60 + "1" + ")" * 60 + " }}", "nested deeper than 50 levels"),
        ("{{ if 1 }}" * 60, "nested deeper than 50 levels"),
        ("{{ if 1 }}{{ $x := 1 }}{{ else }}{{ $x }}{{ end }}", 'undefined variable "$x"'),
        ("{{ if 1 }}{{ $x := 1 }}{{ end }}{{ $x }}", 'undefined variable "$x"'),
    ],
)
def test_templates_that_are_refused(template, error):
    with pytest.raises(ValidationError) as raised:
        PathPostfixTemplate(template)
    assert error in str(raised.value)
    assert str(raised.value).startswith("template: line ")


def test_errors_name_the_line():
    with pytest.raises(ValidationError, match="line 3: can't evaluate field Nope"):
        PathPostfixTemplate("a\n{{/*\n*/}}{{ .Spool.Nope }}")


def test_values_and_output_are_bounded():
    doubled = "{{ $a := `xxxx` }}" + '{{ $a := printf "%s%s" $a $a }}' * 11
    with pytest.raises(ValidationError, match="computes more than 4096 characters"):
        PathPostfixTemplate(doubled)
    shown = '{{ $a := printf "%512d" 1 }}' + "{{ $a }}" * 129
    with pytest.raises(ValidationError, match="makes more than 65536 characters"):
        PathPostfixTemplate(shown)


def test_failure_on_real_values_is_an_error():
    template = PathPostfixTemplate("{{ if .Spool.Begin }}{{ eq 1 .Spool.Journal }}{{ end }}")
    with pytest.raises(ValidationError, match="incompatible types"):
        template.evaluate(_FRAGMENT, _AT, _REGISTERS, _SPEC)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("2006-01-02T15:04:05Z07:00", "2024-01-02T05:06:07Z"),
        ("Mon Jan _2 15:04:05 MST 2006", "Tue Jan  2 05:06:07 UTC 2024"),
        ("Monday, 02-Jan-06 15:04:05 MST", "Tuesday, 02-Jan-24 05:06:07 UTC"),
        ("Mon, 02 Jan 2006 15:04:05 -0700", "Tue, 02 Jan 2024 05:06:07 +0000"),
        ("3:04PM pm 03 3 4 5", "5:06AM am 05 5 6 7"),
        ("January 2 1 06 002 __2", "January 2 1 24 002   2"),
        ("15:04:05.000 .000000000 05,99 05.999", "05:06:07.890 .890000000 07,89 07.89"),
        ("-07 -07:00 Z07 Z0700 -07:00:00", "+00 +00:00 Z Z +00:00:00"),
        ("year=2006/month=01", "year=2024/month=01"),
        ("_2006 Month Janus", "_2024 Month Janus"),
        (".0001 x.00", ".0001 x.89"),
    ],
)
def test_time_layouts(layout, expected):
    assert format_time(_AT, layout) == expected


def test_times_are_shown_in_utc():
    eastern = datetime(2024, 1, 1, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
    template = PathPostfixTemplate('{{ .Spool.FirstAppendTime.Format "2006-01-02/15" }}')
    assert template.text.startswith("{{ .Spool")
    assert template.evaluate(_FRAGMENT, eastern, _REGISTERS, _SPEC) == "2024-01-02/04"


def test_afternoon_and_midnight_on_a_clock_of_twelve_hours():
    assert format_time(_AT.replace(hour=15), "3PM 03pm") == "3PM 03pm"
    assert format_time(_AT.replace(hour=0), "3PM 03") == "12AM 12"
