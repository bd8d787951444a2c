"""`gazette serve --broker.processes`: the supervisor, and the program of each member.

A member reads its settings from its standard input, so that no key shows in the list of processes:
``python -m gazette_platform.cli.gazette.processes NAME``.
"""

from __future__ import annotations

import pickle
import random
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gazette_platform.broker.config import configs_of
from gazette_platform.cli import errors
from gazette_platform.cli.program import set_up_logging
from gazette_platform.errors import ValidationError
from gazette_platform.serving.members.line import SupervisorLine
from gazette_platform.serving.process import random_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.broker.config import BrokerConfig

_MEMBER: Final = (sys.executable, "-m", "gazette_platform.cli.gazette.processes")

app = typer.Typer(pretty_exceptions_enable=False)


def serve_processes(config: BrokerConfig, count: int, *, log_level: str, log_format: str) -> None:
    """Run several brokers until SIGTERM or SIGINT.

    Raises: GazetteError: one could not start, or did not leave as it should.
    """
    from gazette_platform.serving.members.supervisor import (  # noqa: PLC0415  one broker needs none
        Member,
        Supervision,
        Supervisor,
    )
    from gazette_platform.serving.process import run_server  # noqa: PLC0415

    if config.debug_port is None:
        raise ValidationError(
            "several processes need --debug.port, which serves readiness and metrics of all of them",
            path="broker.processes",
        )
    configs = configs_of(config, count, fallback_id=random_id(random.Random()))  # noqa: S311  no secret
    plan = Supervision(
        members=[
            Member(found.id, pickle.dumps((found, log_level, log_format))) for found in configs
        ],
        command=_MEMBER,
        is_json=log_format == "json",
        host=config.http_host,
        port=config.debug_port,
    )
    run_server(lambda: Supervisor(plan), flag="broker.drain-timeout")


@app.command()
def _member(_name: Annotated[str, typer.Argument(help="For the list of processes.")]) -> None:
    line = SupervisorLine.on_stdin()
    task = pickle.loads(line.read_task())  # noqa: S301  our parent wrote it
    config, log_level, log_format = task
    set_up_logging(log_level, log_format)
    from gazette_platform.broker.main import run  # noqa: PLC0415  as late as a lone broker does

    run(config, line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one member. Returns: the exit code."""
    return errors.run(app, "gazette", argv)


if __name__ == "__main__":
    sys.exit(main())
