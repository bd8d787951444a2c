"""Logging of a process, in Gazette's levels and formats."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from typing_extensions import override

from gazette_platform.errors import ValidationError

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "check_logging", "set_up_logging"]

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
