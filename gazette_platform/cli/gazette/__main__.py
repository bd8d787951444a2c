"""``python -m gazette_platform.cli.gazette``."""

from __future__ import annotations

from gazette_platform.cli.gazette import main
from gazette_platform.cli.start import leave

if __name__ == "__main__":
    leave(main())
