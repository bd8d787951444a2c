"""Dagster's web server behind a guard: ``python -m … programs.dagster_web`` with its own options.

It takes mutations from anybody who can reach its port, and so from every page that a browser shows.
The guard is part of its process: one in front of it would leave the server's own address in their reach.
"""

from __future__ import annotations

from typing import Any

from gazette_platform.platform.programs.guard import WebGuard


def main() -> None:
    """Run Dagster's own command, which serves with uvicorn."""
    import uvicorn  # noqa: PLC0415  an extra
    from dagster_webserver import cli  # noqa: PLC0415  an extra

    serve = uvicorn.run

    def serve_guarded(application: Any, **options: Any) -> None:
        serve(WebGuard(application), **options)

    uvicorn.run = serve_guarded  # type: ignore[assignment]
    cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
