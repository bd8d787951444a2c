"""Names for servers that were given none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


def _words(text: str) -> list[str]:
    return text.split()


_MOODS = _words(
    "amber brave calm clever daring eager fair gentle golden happy humble jolly keen kind lively "
    "lucky merry mighty modest noble patient proud quick quiet ready sharp silent steady sunny "
    "swift tidy wise"
)
_BEINGS = _words(
    "badger beaver bison crane curlew dolphin eagle falcon ferret finch fox gannet hare heron ibis "
    "jackdaw kestrel lark linnet lynx magpie marten merlin newt osprey otter petrel plover raven "
    "robin stoat swallow tern wren"
)


def random_id(rng: random.Random) -> str:
    """Two words and a number: unique enough for a cluster, and good to talk about."""
    return f"{rng.choice(_MOODS)}-{rng.choice(_BEINGS)}-{rng.randrange(1000):03d}"
