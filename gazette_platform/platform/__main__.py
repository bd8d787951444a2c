"""The supervisor as a process of its own, started by ``gazette up --detach``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from gazette_platform.errors import GazetteError
from gazette_platform.platform.control import Board
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.platform.platform import PlatformOptions
from gazette_platform.platform.supervisor import Supervisor


def main(argv: list[str]) -> int:
    """Run the platform of folder ``argv[0]`` with the options in ``argv[1]``, as JSON.

    Returns: the exit code; a failure is the last thing printed, after ``error: ``.
    """
    root, request = argv
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options = PlatformOptions.from_json(json.loads(request))
    try:
        with Board() as board:
            Supervisor(PlatformDir.at(Path(root)), options, board).run()
    except GazetteError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201  its log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
