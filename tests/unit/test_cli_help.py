"""What `--help` shows."""

from __future__ import annotations

import typer.main

from gazette_platform.cli.gazctl import app


def test_each_command_has_help_with_an_example():
    def leaves(command, path):
        for name, below in getattr(command, "commands", {}).items():
            yield from leaves(below, f"{path} {name}")
        if not getattr(command, "commands", {}):
            yield path, command

    found = dict(leaves(typer.main.get_command(app), "gazctl"))
    assert {"gazctl journals top", "gazctl attach-uuids", "gazctl savepoints get"} <= set(found)
    for path, command in found.items():
        assert "**Example" in command.help, path
        usage = command.get_usage(typer.Context(command, info_name=path))
        assert "[[" not in usage, usage
        assert "...}" not in usage, usage
        examples = command.help.split("**Example", 1)[1]
        assert " ".join(path.split()[:2]) in examples, path
