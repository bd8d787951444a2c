"""Specs of journals as tests need them: small fragments, in the brokers' own folder of files."""

from __future__ import annotations

from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb

__all__ = ["journal_spec", "upserts"]


def journal_spec(
    name,
    replication=1,
    *,
    length=1 << 20,
    codec=CompressionCodec.NONE,
    stores=("file:///",),
    refresh_s=1,
    flush_s=0,
    retention_s=0,
    postfix="",
    labels=None,
    **fields,
):
    """A journal's spec; with `refresh_s` of an hour its stores are listed only when something asks for it."""
    fragment = FragmentSpec(
        length=length,
        codec=codec,
        stores=stores,
        refresh_interval_ns=refresh_s * SECOND_NS,
        flush_interval_ns=flush_s * SECOND_NS,
        retention_ns=retention_s * SECOND_NS,
        path_postfix_template=postfix,
    )
    return JournalSpec(
        name, replication, labels=LabelSet.of(labels or {}), fragment=fragment, **fields
    )


def upserts(*specs):
    """A request that makes journals, or changes them, whatever their revisions."""
    request = pb.ApplyRequest()
    for each in specs:
        request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(each.to_pb())
    return request
