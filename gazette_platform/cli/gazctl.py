"""`gazctl`: the command line of journals."""

import sys

import typer

from gazette_platform.cli import (
    gazctl_attach_uuids,
    gazctl_journals_append,
    gazctl_journals_apply,
    gazctl_journals_describe,
    gazctl_journals_fragments,
    gazctl_journals_list,
    gazctl_journals_prune,
    gazctl_journals_read,
    gazctl_journals_top,
    gazctl_journals_upkeep,
    gazctl_lake,
    gazctl_savepoints,
    gazctl_sql,
)
from gazette_platform.cli.connection import CONNECTION_VARIABLES, CommonOptionsGroup, connect
from gazette_platform.cli.errors import EXIT_FAILED, run
from gazette_platform.cli.ini import apply_ini
from gazette_platform.cli.version import Version
from gazette_platform.errors import GazetteError

__all__ = ["app", "main"]

app = typer.Typer(
    name="gazctl",
    help="Work with the journals of Gazette-compatible brokers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_EPILOG = (
    "Options of the connection may also stand behind the command, come from environment "
    "variables, or from gazctl.ini in the current folder or ~/.config/gazette."
)
journals = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, apply, read and append to journals, and keep their fragments.",
    epilog=_EPILOG,
)
journals.callback()(connect)
journals.command("list")(gazctl_journals_list.list_journals)
journals.command("describe")(gazctl_journals_describe.describe)
journals.command("top")(gazctl_journals_top.top)
journals.command("apply")(gazctl_journals_apply.apply)
journals.command("edit")(gazctl_journals_apply.edit)
journals.command("append")(gazctl_journals_append.append)
journals.command("read")(gazctl_journals_read.read)
journals.command("fragments")(gazctl_journals_fragments.fragments)
journals.command("prune")(gazctl_journals_prune.prune)
journals.command("reset-head")(gazctl_journals_upkeep.reset_head)
journals.command("flush")(gazctl_journals_upkeep.flush)
journals.command("suspend")(gazctl_journals_upkeep.suspend)
journals.command("store-health")(gazctl_journals_upkeep.store_health)
app.add_typer(journals, name="journals")
savepoints = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Keep offsets of journals under names. Not of Gazette's brokers.",
    epilog=_EPILOG,
)
savepoints.callback()(connect)
savepoints.command("create")(gazctl_savepoints.create)
savepoints.command("list")(gazctl_savepoints.list_savepoints)
savepoints.command("get")(gazctl_savepoints.get)
savepoints.command("delete")(gazctl_savepoints.delete)
app.add_typer(savepoints, name="savepoints")
lake = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Describe journals as tables, and see how these stand. Not of Gazette's tools.",
    epilog=_EPILOG,
)
lake.callback()(connect)
lake.command("apply")(gazctl_lake.apply)
lake.command("list")(gazctl_lake.list_tables)
lake.command("describe")(gazctl_lake.describe)
lake.command("infer")(gazctl_lake.infer)
lake.command("ddl")(gazctl_lake.ddl)
lake.command("check")(gazctl_lake.check)
lake.command("flush")(gazctl_lake.flush)
lake.command("repair")(gazctl_lake.repair)
lake.command("doctor")(gazctl_lake.doctor)
app.add_typer(lake, name="lake")
app.command("sql", epilog=_EPILOG)(gazctl_sql.sql)
app.command("attach-uuids")(gazctl_attach_uuids.attach_uuids)


@app.callback()
def _root(
    *,
    _version: Version = False,
) -> None:
    """Work with the journals of Gazette-compatible brokers."""


def main(argv: list[str] | None = None) -> int:
    """Run `gazctl`; returns its exit code, or ends the process when it is the program itself."""
    try:
        apply_ini("gazctl.ini", CONNECTION_VARIABLES)
    except GazetteError as err:
        print(f"gazctl: error: {err}", file=sys.stderr)
        code = EXIT_FAILED
    else:
        code = run(app, "gazctl", argv)
    if argv is None:
        sys.exit(code)
    return code


if __name__ == "__main__":
    main()
