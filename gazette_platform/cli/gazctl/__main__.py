"""``python -m gazette_platform.cli.gazctl``."""

from __future__ import annotations

from gazette_platform.cli.gazctl import main

if __name__ == "__main__":
    main()
