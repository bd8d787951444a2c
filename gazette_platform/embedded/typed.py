"""What writes typed tables without end, as a component; see `gazette_platform.embedded.typed_main`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from gazette_platform.embedded.component import Component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.embedded.layout import PlatformDir

__all__ = ["NAME", "typed_component"]

NAME: Final = "typed"


def typed_component(
    layout: PlatformDir, *, environment: Mapping[str, str], requires: tuple[str, ...]
) -> Component:
    """The component. It is ready at once: until a table spec says `every` it does nothing.

    Args:
        layout: folders of the platform.
        environment: variables that let programs find the platform.
        requires: what runs call.
    """
    return Component(
        name=NAME,
        command=(
            sys.executable,
            "-m",
            "gazette_platform.embedded.typed_main",
            str(layout.tables),
            str(layout.logs / f"{NAME}.log"),
        ),
        requires=requires,
        environment=environment,
        ready=lambda: True,
        stop_timeout_s=60.0,
    )
