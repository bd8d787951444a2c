"""All commands of `gazctl`."""

import typer

from gazette_platform.cli import (
    gazctl_attach_uuids,
    gazctl_journals_append,
    gazctl_journals_apply,
    gazctl_journals_create,
    gazctl_journals_delete,
    gazctl_journals_describe,
    gazctl_journals_fragments,
    gazctl_journals_list,
    gazctl_journals_prune,
    gazctl_journals_read,
    gazctl_journals_top,
    gazctl_journals_upkeep,
    gazctl_journals_verify,
    gazctl_lake,
    gazctl_lake_tables,
    gazctl_lake_typed,
    gazctl_savepoints,
    gazctl_shards,
    gazctl_sql,
)
from gazette_platform.cli.connection import CommonOptionsGroup, connect
from gazette_platform.cli.gazctl_root import EPILOG, new_app
from gazette_platform.cli.shards_connection import connect_shards

__all__ = ["app"]

app = new_app()
journals = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create, list, append to and read journals, and keep their fragments.",
    epilog=EPILOG,
)
journals.callback()(connect)
journals.command("list")(gazctl_journals_list.list_journals)
journals.command("describe")(gazctl_journals_describe.describe)
journals.command("top")(gazctl_journals_top.top)
journals.command("create")(gazctl_journals_create.create)
journals.command("delete")(gazctl_journals_delete.delete)
journals.command("apply")(gazctl_journals_apply.apply)
journals.command("edit")(gazctl_journals_apply.edit)
journals.command("append")(gazctl_journals_append.append)
journals.command("read")(gazctl_journals_read.read)
journals.command("fragments")(gazctl_journals_fragments.fragments)
journals.command("prune")(gazctl_journals_prune.prune)
journals.command("verify")(gazctl_journals_verify.verify)
journals.command("reset-head")(gazctl_journals_upkeep.reset_head)
journals.command("flush")(gazctl_journals_upkeep.flush)
journals.command("suspend")(gazctl_journals_upkeep.suspend)
journals.command("store-health")(gazctl_journals_upkeep.store_health)
app.add_typer(journals, name="journals")
shards = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, apply and unassign shards of consumers, and keep their recovery logs.",
    epilog=EPILOG,
)
shards.callback()(connect_shards)
shards.command("list")(gazctl_shards.list_shards)
shards.command("apply")(gazctl_shards.apply)
shards.command("edit")(gazctl_shards.edit)
shards.command("prune")(gazctl_shards.prune)
shards.command("recover")(gazctl_shards.recover)
shards.command("unassign")(gazctl_shards.unassign)
app.add_typer(shards, name="shards")
savepoints = typer.Typer(
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Keep offsets of journals under names. Not of Gazette's brokers.",
    epilog=EPILOG,
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
    help="Create tables over journals, check and maintain them. Gazette's own tools do not have these commands.",
    epilog=EPILOG,
)
lake.callback()(connect)
lake.command("create")(gazctl_lake_tables.create)
lake.command("apply")(gazctl_lake.apply)
lake.command("list")(gazctl_lake.list_tables)
lake.command("describe")(gazctl_lake.describe)
lake.command("infer")(gazctl_lake.infer)
lake.command("drop")(gazctl_lake_tables.drop)
lake.command("ddl")(gazctl_lake.ddl)
lake.command("check")(gazctl_lake.check)
lake.command("run")(gazctl_lake_typed.run)
lake.command("backfill")(gazctl_lake_typed.backfill)
lake.command("reprocess")(gazctl_lake_typed.reprocess)
lake.command("flush")(gazctl_lake.flush)
lake.command("repair")(gazctl_lake.repair)
lake.command("quarantine")(gazctl_lake.quarantine)
lake.command("doctor")(gazctl_lake.doctor)
app.add_typer(lake, name="lake")
app.command("sql", epilog=EPILOG)(gazctl_sql.sql)
app.command("attach-uuids")(gazctl_attach_uuids.attach_uuids)
