"""Texts to a running group, and counts of it: ``python -m examples.word_count.client``."""

from __future__ import annotations

import argparse
import sys

import grpc  # type: ignore[import-untyped]

from examples.word_count.pb import word_count_pb2 as pb, word_count_pb2_grpc as rpcs

__all__ = ["main"]

_ANSWER_S = 60.0


def main() -> int:
    """Make one call. Returns: exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.word_count.client")
    parser.add_argument("--address", default="127.0.0.1:8090", help="of any process of the group")
    commands = parser.add_subparsers(dest="command", required=True)
    publish = commands.add_parser("publish", help="count the n-grams of a text")
    publish.add_argument("text", help="- for stdin")
    query = commands.add_parser("query", help="print n-grams that begin with a prefix")
    query.add_argument("prefix")
    query.add_argument("--shard", default="", help="to ask; default: the one of the n-gram PREFIX")
    given = parser.parse_args()
    with grpc.insecure_channel(given.address) as channel:
        stub = rpcs.NGramStub(channel)  # type: ignore[no-untyped-call]
        try:
            if given.command == "publish":
                text = sys.stdin.read() if given.text == "-" else given.text
                stub.Publish(pb.PublishRequest(text=text), timeout=_ANSWER_S)
                return 0
            request = pb.QueryRequest(prefix=given.prefix, shard=given.shard)
            for gram in stub.Query(request, timeout=_ANSWER_S).grams:
                print(f"{gram.count}\t{gram.n_gram}")
        except grpc.RpcError as err:
            print(f"{err.code().name}: {err.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
