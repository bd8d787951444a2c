"""A slim, typed asyncio client of etcd v3.

Nouns: key, revision (of the whole store), lease, transaction, watch. Guarantees: deadlines on
every call, several endpoints, whole revisions from watches, and errors that name endpoint, key
and next step. What is not promised: exactly-once writes; a write whose connection broke may have
been applied, so writers compare revisions in a transaction.
"""

from __future__ import annotations

from gazette_platform.etcd.client import TXN_OPS_MAX, EtcdClient, Lease, Watch
from gazette_platform.etcd.wire import (
    Compacted,
    Compare,
    CompareTarget,
    Delete,
    EtcdFull,
    EtcdRejected,
    EtcdTls,
    Event,
    Get,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    ResponseHeader,
    ServerStatus,
    TxnResult,
    WatchBatch,
    parse_endpoint,
)

__all__ = [
    "TXN_OPS_MAX",
    "Compacted",
    "Compare",
    "CompareTarget",
    "Delete",
    "EtcdClient",
    "EtcdFull",
    "EtcdRejected",
    "EtcdTls",
    "Event",
    "Get",
    "KeyValue",
    "Lease",
    "Operation",
    "Put",
    "RangeResult",
    "ResponseHeader",
    "ServerStatus",
    "TxnResult",
    "Watch",
    "WatchBatch",
    "parse_endpoint",
]
