"""What commands say of content that a typed table needs, and that no broker or store holds."""

from gazette_platform.lake.typed.planning.ranges import Hole, HoleKind


def hole_text(table: str, hole: Hole) -> str:
    """What a hole of a journal is to a typed table, and what may be done."""
    what = f"bytes {hole.begin} to {hole.end} of {hole.journal}"
    give_up = f"`gazctl lake run {table} --give-up {hole.journal}={hole.end}`"
    match hole.kind:
        case HoleKind.PRUNED:
            return f"{what} were pruned before they were read, so it stands still; {give_up} goes on without them"
        case HoleKind.MISSING:
            return (
                f"nobody holds {what} now, so it waits: they may be on their way to their store; if they are "
                f"lost, {give_up} goes on without them"
            )
        case HoleKind.OPEN_PRUNED:
            return (
                f"{what} were pruned, in which a transaction begins that is open: if that is committed, runs fail, until "
                f"{give_up} goes on without what is left of it"
            )
        case HoleKind.MADE_AGAIN:
            return (
                f"{hole.journal} is not the journal that was read up to {hole.end}, and ends at {hole.begin}: it was "
                f"deleted and made again, or lost its end. It stands still until you decide: `gazctl lake run {table} "
                f"--begin-anew {hole.journal}` reads it from its beginning, beside the rows of the former one; "
                f"`--begin-anew {hole.journal}=OFFSET` reads on from there, as from {hole.end} if its content is the "
                "same as before"
            )
