"""The console: pages that a broker serves at ``/console`` on its HTTP port, and what they ask.

The pages are files of `static`: plain modules of the browser, without a build step. They ask ``/console/api/``, which
makes the broker's own RPCs with the token that the page sends. So a page shows what that token may list and read, and
no more. Nothing here runs, and nothing is kept, while no page asks.
"""

from gazette_platform.console.routes import add_console

__all__ = ["add_console"]
