"""``python -m gazette_platform.cli.gazette``."""

from __future__ import annotations

import sys

from gazette_platform.cli.gazette import main

if __name__ == "__main__":
    sys.exit(main())
