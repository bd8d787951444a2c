"""Fragment stores: where persisted fragments live, and whether that place is well.

A *store* is named by a URL in the specs of journals and holds objects under *content paths*
(``<journal>/<postfix>/<fragment name>``). Objects are written whole or not at all and are never
changed, so readers need no lock. A *registry* keeps one store per URL and checks its health.

Guarantee: when `FragmentStore.put` returns, the object survives a crash of the machine.
"""

from __future__ import annotations

from gazette_platform.stores.interface import (
    FragmentStore,
    ServerSideStore,
    StoredObject,
    clock_probe,
    delete_probe,
    health_check,
)
from gazette_platform.stores.registry import ActiveStore, StoreHealth, StoreRegistry, open_store

__all__ = [
    "ActiveStore",
    "FragmentStore",
    "ServerSideStore",
    "StoreHealth",
    "StoreRegistry",
    "StoredObject",
    "clock_probe",
    "delete_probe",
    "health_check",
    "open_store",
]
