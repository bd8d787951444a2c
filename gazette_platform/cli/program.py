"""What both programs have: INI files, logging, `--version`, exit codes, and errors in one line on stderr.

INI files yield to flags, and take precedence over the environment. Logging is in Gazette's levels and formats. Texts of
errors of specs are Gazette's, which say what is wrong and no more; `with_advice` adds the next step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import override

from gazette_platform.cli import commands
from gazette_platform.cli.output import printable
from gazette_platform.errors import (
    GazetteError,
    LakeError,
    SetupError,
    TransportError,
    ValidationError,
)
from gazette_platform.ops import platforms


def find_ini(name: str, environ: Mapping[str, str]) -> Path | None:
    """The first INI file called `name` in the places that Gazette's programs look at."""
    folders = [Path()]
    homes = (environ.get(variable) for variable in ("HOME", "UserProfile"))
    folders += [Path(home) / ".config" / "gazette" for home in homes if home]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def apply_ini(
    name: str, variables: Mapping[str, str], environ: MutableMapping[str, str] = os.environ
) -> Path | None:
    """Let the values of an INI file stand in for the environment variables of their options.

    That gives the precedence of Gazette's programs, flag over INI over environment, for any
    option that has a variable. Sections are option groups; keys are compared without case, dashes
    and underscores, so that both ``cert-file`` and ``CertFile`` do. Unknown ones are ignored.

    Args:
        name: of the file, as ``gazctl.ini``.
        variables: of each option, by its full name, as ``broker.address``; names without a group
            belong to the section ``Application Options``.

    Returns: the file that was read, if there is one.
    Raises: ValidationError: it is not an INI file.
    """
    path = find_ini(name, environ)
    if path is None:
        return None
    import configparser  # noqa: PLC0415  few have such a file

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as err:
        raise ValidationError(f"cannot read {path}: {err.strerror}") from err
    except (configparser.Error, UnicodeDecodeError) as err:
        raise ValidationError(f"{path} is not an INI file: {' '.join(str(err).split())}") from err
    by_key = {_key(option): variable for option, variable in variables.items()}
    for section in parser.sections():
        group = "" if section == "Application Options" else section
        for key, value in parser.items(section):
            variable = by_key.get(_key(f"{group}.{key}")) or by_key.get(_key(key))
            if variable is not None:
                environ[variable] = value
    return path


def render_ini(values: Mapping[str, str]) -> str:
    """INI text of option values by full names, such as ``broker.address``."""
    groups: dict[str, list[str]] = {}
    for option, value in values.items():
        group, _, key = option.partition(".") if "." in option else ("", "", option)
        title = group.capitalize() if group else "Application Options"
        groups.setdefault(title, []).append(f"{key} = {value}")
    return "\n".join(f"[{title}]\n" + "\n".join(lines) + "\n" for title, lines in groups.items())


def _key(option: str) -> str:
    return option.lower().replace("-", "").replace("_", "").replace(" ", "").strip(".")


LOG_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
LOG_FORMATS = {
    "text": "%(asctime)s %(levelname)s %(name)s: %(message)s",
    "color": "\033[2m%(asctime)s\033[0m \033[1m%(levelname)s\033[0m %(name)s: %(message)s",
    "json": "",
}


class _JsonFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def check_logging(level: str, log_format: str) -> None:
    """Raises: ValidationError: either is unknown."""
    if level not in LOG_LEVELS:
        raise ValidationError(
            f"expected one of {', '.join(LOG_LEVELS)}, got {level!r}", path="--log.level"
        )
    if log_format not in LOG_FORMATS:
        raise ValidationError(
            f"expected one of {', '.join(LOG_FORMATS)}, got {log_format!r}", path="--log.format"
        )


def set_up_logging(level: str, log_format: str) -> None:
    """Log to standard error, from `level` on, in `log_format`; replaces what was set up before.

    Raises: ValidationError: either is unknown.
    """
    check_logging(level, log_format)
    handler = logging.StreamHandler(sys.stderr)
    text = LOG_FORMATS[log_format]
    handler.setFormatter(logging.Formatter(text) if text else _JsonFormatter())
    logging.basicConfig(level=LOG_LEVELS[level], handlers=[handler], force=True)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  the parser's way to call back
    if is_asked:
        from importlib.metadata import version  # noqa: PLC0415  slow to import

        print(version("gazette-platform"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
# The parser's, of wrong usage.
_EXIT_USAGE = 2

_TRACE_VARIABLE = "GAZETTE_TRACEBACK"
_START_CONSUMER = "start your consumer, or give its address with --consumer.address"


def run(app: typer.Typer, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line, and map how it ended to an exit code.

    What fails exits with 1, as Gazette's tools do: usage errors, also no command at all, for which
    the parser prints how it is meant; and whatever else, with one line on stderr. ``GAZETTE_TRACEBACK=1``
    adds the traceback.

    Args:
        argv: arguments without the program's name; None takes the process's.
    """
    code = _run(app, prog, argv)
    try:
        sys.stdout.flush()
    except OSError as err:
        _discard_output()
        return code or _fail_with(prog, err)
    return code


def _discard_output() -> None:
    """Point stdout elsewhere, or the interpreter complains at exit of what it cannot write."""
    with contextlib.suppress(OSError):  # a stdout that is not a file has no error to report
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(app: typer.Typer, prog: str, argv: Sequence[str] | None) -> int:
    commands.install()
    try:
        app(args=list(sys.argv[1:] if argv is None else argv), prog_name=prog)
    except SystemExit as err:
        return _exit_code(err, prog)
    except KeyboardInterrupt:
        _say(prog, "interrupted")
        return EXIT_INTERRUPTED
    except Exception as err:  # noqa: BLE001  the supervisor of a process: nothing may print a trace
        return _fail_with(prog, _innermost(err))
    return 0


def _innermost(error: BaseException) -> BaseException:
    """The first of the errors that a task group gathered."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail_with(prog: str, error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone, as `| head` does: nothing is wrong, and nothing more
        # can be said.
        _discard_output()
        return EXIT_FAILED
    if isinstance(error, LakeError):
        return _fail(prog, "; ".join([one_line(str(error)), *_away()]))
    if isinstance(error, TransportError) and platforms.DEFAULT_BROKER in str(error):
        is_consumer = f"consumer {platforms.DEFAULT_BROKER}" in str(error)
        step = _START_CONSUMER if is_consumer else platforms.advice(os.environ)
        return _fail(prog, f"{one_line(str(error))}; {step}")
    if isinstance(error, GazetteError):
        return _fail(prog, with_advice(one_line(str(error))))
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return _fail(prog, one_line(f"{name}{error.strerror or error}"))
    return _fail(
        prog,
        f"unexpected {type(error).__name__}: {one_line(str(error))} "
        f"(this is a bug; {_TRACE_VARIABLE}=1 shows where)",
    )


def _away() -> list[str]:
    """What is away of the platform whose environment this is; nothing if there is none."""
    endpoints = os.environ.get("GAZETTE_ENDPOINTS")
    if not endpoints:
        return []
    from gazette_platform.platform.layout import (  # noqa: PLC0415  few errors need them
        PlatformDir,
        PlatformState,
    )

    with contextlib.suppress(SetupError):
        return PlatformState.load(PlatformDir.at(Path(endpoints).parent).state).away()
    return []


def _exit_code(err: SystemExit, prog: str) -> int:
    if err.code is None:
        return 0
    if isinstance(err.code, int):
        if err.code == EXIT_INTERRUPTED:
            _say(prog, "interrupted")
        return EXIT_FAILED if err.code == _EXIT_USAGE else err.code
    return _fail(prog, one_line(str(err.code)))


def _fail(prog: str, message: str) -> int:
    if os.environ.get(_TRACE_VARIABLE):
        traceback.print_exc()
    _say(prog, message)
    return EXIT_FAILED


def _say(prog: str, message: str) -> None:
    logging.getLogger(__name__).debug("%s ended: %s", prog, message)
    from rich.console import Console  # noqa: PLC0415  slow to import

    # Without emoji: `host:1234:` is an address, and no request for a picture of numbers.
    console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
    console.print(f"{prog}: error: ", style="bold red", end="")
    console.print(printable(message), markup=False)


def one_line(text: str) -> str:
    r"""`text` without line breaks.

    >>> one_line("two\n  lines")
    'two lines'
    """
    return " ".join(text.split())


_EXAMPLE = "`gazctl journals create NAME --print` prints a whole spec"
_ADVICE = (
    (
        r"not a valid token",
        "letters, digits and - _ + / . are allowed, and = % in the name of a journal",
    ),
    (r"cannot begin with '/'", "leave out the first /"),
    (
        r"invalid scheme \(",
        "stores begin with s3://, gs://, azure://, azure-ad://, hdfs:// or file://",
    ),
    (r"path component doesn't end in '/'", "end it with /, as in s3://bucket/folder/"),
    (
        r"Fragment\.CompressionCodec: invalid value",
        f"fragment.compression_codec is GZIP, for example; {_EXAMPLE}",
    ),
    (r"expected a mapping of keys to values", f"a spec is `key: value` lines; {_EXAMPLE}"),
    (r"the document is not UTF-8", "give a YAML file, as UTF-8"),
    (r"invalid MaxTxnDuration", "set max_txn_duration, as in 1s"),
)


def with_advice(text: str) -> str:
    """An error's text, and the next step if one is known.

    >>> with_advice("a/b: Fragment.Stores[0]: invalid scheme (ftp)")
    'a/b: Fragment.Stores[0]: invalid scheme (ftp); stores begin with s3://, gs://, azure://, azure-ad://, hdfs:// or file://'
    >>> with_advice("no such journal")
    'no such journal'
    """
    steps = [step for pattern, step in _ADVICE if re.search(pattern, text)]
    return "; ".join([text, *steps[:1]])
