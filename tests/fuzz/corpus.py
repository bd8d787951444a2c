"""Inputs that once ended, hung or fooled a broker. They run first, and are mutated afterwards.

Long because it is a list.

A case is added here when a fault is found; its name says what the fault was.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from tests.benches.raw_protobuf import blob, number
from tests.fuzz.arena import ABSENT, HIDDEN
from tests.fuzz.cases import Case, Step
from tests.fuzz.frames import attacks
from tests.fuzz.http2 import headers_frame, preface, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

__all__ = ["append", "apply", "corpus", "get", "labels", "rpc", "spec", "upsert"]

_J, _A = "/protocol.Journal/", "/gazette_platform.Admin/"
_DIGITS = "9" * 5000
_ACCEPT_EVENTS = b"Accept: text/event-stream\r\n"


# ------------------------------------------------------------------ makers of steps


def rpc(method: str, *messages: Message | bytes, **arguments: Any) -> Step:
    """One call; `method` is without its service if that is `Journal`."""
    raw = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
    path = method if method.startswith("/") else _J + method
    return {"do": "rpc", "method": path, "messages": raw, **arguments}


def labels(*pairs: tuple[str, str]) -> pb.LabelSet:
    """A label set in this order."""
    return pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in pairs])


def spec(name: str, *stores: str, template: str = "", **fields: Any) -> pb.JournalSpec:
    """A spec that is valid, apart from what is given."""
    found = pb.JournalSpec(name=name, replication=1, **fields)
    found.fragment.length = found.fragment.length or 1 << 20
    found.fragment.compression_codec = pb.GZIP
    found.fragment.stores.extend(stores or ("file:///",))
    found.fragment.refresh_interval.seconds = 1
    found.fragment.path_postfix_template = template
    return found


def upsert(*specs: pb.JournalSpec) -> pb.ApplyRequest:
    """A request that creates or replaces journals."""
    change = pb.ApplyRequest.Change
    return pb.ApplyRequest(changes=[change(upsert=s, expect_mod_revision=-1) for s in specs])


def apply(*specs: pb.JournalSpec, **arguments: Any) -> Step:
    """A step that creates or replaces journals."""
    return rpc("Apply", upsert(*specs), **arguments)


def append(journal: str, *contents: bytes, **arguments: Any) -> Step:
    """A well-formed append; `fields` among the arguments are those of its first message."""
    first = pb.AppendRequest(journal=journal, **arguments.pop("fields", {}))
    return rpc("Append", first, *[pb.AppendRequest(content=c) for c in contents], b"", **arguments)


def get(
    path: str, *headers: bytes, method: str = "GET", body: bytes = b"", **arguments: Any
) -> Step:
    """A request to the gateway, with the token of ``mine``."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: {HOST}", b"Connection: close"]
    if not any(line.lower().startswith(b"authorization") for line in headers):
        lines.append(b"Authorization: Bearer {TOKEN:mine}")
    raw = b"\r\n".join([*lines, *headers, b"", b""]) + body
    return {"do": "http", "raw": raw, **arguments}


def _parse(target: str, text: str | bytes) -> Step:
    return {
        "do": "parse",
        "target": target,
        "text": text if isinstance(text, bytes) else text.encode(),
    }


def _etcd(*puts: tuple[str, bytes]) -> Step:
    return {"do": "etcd", "puts": [list(put) for put in puts]}


def _wait(seconds: float) -> Step:
    return {"do": "wait", "seconds": seconds}


def _fragment(
    journal: str, begin: int, end: int, content: bytes, *, suffix: str = ".gz"
) -> list[Any]:
    """A file that looks like a fragment of a journal; its sum is that of nothing."""
    return [f"{journal}/{begin:016x}-{end:016x}-{'0' * 39}1{suffix}", content]


def bomb(megabytes: int) -> bytes:
    """Gzip of so many zeros."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return out.getvalue()


# ------------------------------------------------------------------ the cases


@cache
def corpus() -> tuple[Case, ...]:
    """All cases. Some are large, so they are made only once."""
    found: list[Case] = []
    for group in (
        _stores,
        _templates,
        _claims,
        _labels,
        _specs,
        _keys,
        _http,
        _memory,
        _wholes,
        _orders,
        _parsers,
        _twins,
    ):
        found.extend(group())
    return tuple(found)


def _stores() -> Iterator[Case]:
    for name, url in {
        "nul": "file:///x%00y/",
        "escaped-parent": "file:///%2e%2e/",
        "parent": "file:///../../",
        "long-name": "file:///" + "n" * 300 + "/",
        "long-path": "file:///" + "d/" * 2500,
        "lone-surrogate": "file:///%ed%a0%80/",
        "not-utf8": "file:///%ff%fe/",
        "unclosed-host": "http://[::1/",
        "port": "s3://bucket:port/x/",
        "s3": "s3://bucket/x/?profile=%00&endpoint=http://127.0.0.1:1",
        "find-nothing": "file:///?find=&replace=x",
        "replace-nul": "file:///?find=fuzz&replace=%00",
    }.items():
        yield Case(f"store-health-{name}", [rpc("FragmentStoreHealth", pb.FragmentStoreHealthRequest(fragment_store=url), token=t) for t in ("mine", "all")])  # fmt: skip
        journal = f"fuzz/store-{name}"
        yield Case(f"store-apply-{name}", [apply(spec(journal, url)), append(journal, b"x"), _flush(journal), _read(journal)])  # fmt: skip
    deep = pb.FragmentStoreHealthRequest(fragment_store="file:///mine/" + "d/" * 1000)
    yield Case("store-health-makes-deep-folders", [rpc("FragmentStoreHealth", deep, token="read")])
    for tail in ("../", "a/../../", "\0/", "d/" * 250, "*/"):
        request = pb.FragmentStoreHealthRequest(
            fragment_store="file:///mine/", check_delete=True, check_delete_prefix=tail
        )
        yield Case(
            f"store-health-prefix-{tail[:6]!r}", [rpc("FragmentStoreHealth", request, token="mine")]
        )
    for name, url in {
        "find-replace": "file:///?find=mine/spy&replace=secret/pay-kobold",
        "find-replace-half": "file:///?find=mine/s&replace=secret/pay-kobold/",
        "nested": f"file:///{HIDDEN}/",
        "above": "file:///secret/",
        "encoded": "file:///secret%2Fpay-kobold/",
    }.items():
        takes = apply(spec("mine/spy", url), token="mine")
        spies = [
            _read("mine/spy", token="mine"),
            _list_fragments("mine/spy", "mine"),
            get("/mine/spy?offset=0"),
        ]
        forges = [append("mine/spy", b"forged\n", token="mine"), _flush("mine/spy", "mine")]
        yield Case(f"store-spies-{name}", [takes, _wait(0.3), *spies, *forges])
    yield Case(
        "folders-1500-deep",
        [{"do": "files", "deep": ["fuzz/a", 1500]}, _wait(2.5), _read("fuzz/a")],
    )
    odd = ["-", "x" * 200, "0-0-0.gz", f"{'f' * 16}-{'f' * 16}-{'0' * 40}.gz", f"{0:016x}-{9:016x}-{'z' * 40}.raw", "a=b\n", "\udcff"]  # fmt: skip
    planted = [[f"fuzz/b/{name}", b"x"] for name in odd]
    planted += [_fragment("fuzz/b", 1 << 20, (1 << 20) + 9, b"\x1f\x8b\x08\0"), _fragment("fuzz/b", 1 << 21, (1 << 21) + (64 << 20), bomb(80))]  # fmt: skip
    planted += [
        _fragment("fuzz/b", 1 << 30, (1 << 30) + 5, b"junk", suffix=s)
        for s in (".sz", ".zst", ".raw", "", ".exe")
    ]
    reads = [_read("fuzz/b", offset=o) for o in (0, 1 << 20, 1 << 21, 1 << 30)]
    yield Case("files-planted", [{"do": "files", "files": planted}, _wait(2.5), *reads])
    beyond = [_fragment("fuzz/c", (1 << 63) - 10, (1 << 63) - 1, b"x" * 9, suffix=".raw")]
    yield Case("file-at-the-end-of-all-offsets", [{"do": "files", "files": beyond}, _wait(2.5), append("fuzz/c", b"x" * 20), _read("fuzz/c", offset=-1)])  # fmt: skip


def _templates() -> Iterator[Case]:
    grows = '{{$a := "xxxxxxxxxxxxxxxxxxxxxxxxxx"}}' + '{{$a := printf "%s%s" $a $a}}' * 25
    cases = {
        "lone-surrogate-at-persist": '{{if .Spool.End}}{{len (printf "%c" 55296)}}{{end}}',
        "lone-surrogate": '{{if .Spool.End}}{{printf "%c" 55296}}{{end}}',
        "width-of-5000-digits": f'{{{{printf "%{_DIGITS}d" 1}}}}',
        "precision-of-5000-digits": f'{{{{printf "%.{_DIGITS}d" 1}}}}',
        "width-of-9-digits": '{{printf "%999999999d" 1}}',
        "argument-of-5000-digits": f'{{{{printf "%[{_DIGITS}]d" 1}}}}',
        "doubling": grows,
        "doubling-at-persist": "{{if .Spool.End}}" + grows + "{{$a}}{{end}}",
        "number-of-5000-digits": "{{" + _DIGITS + "}}",
        "number-of-5000-digits-later": "{{if .Spool.End}}{{eq 1 " + _DIGITS + "}}{{end}}",
        "300000-actions": "{{1}}" * 300_000,
        "deep-brackets": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "deep-ifs": "{{if 1}}" * 3000 + "{{end}}" * 3000,
        "parent-folder": "{{if .Spool.End}}../../secret{{end}}",
        "nul": "{{if .Spool.End}}a\0b{{end}}",
        "odd-code-points": '{{printf "%c%c" -1 1114112}}',
        "format-of-format": '{{printf (printf "%s%s" "%9999" "99999d") 1}}',
        "index-far": "{{if .Spool.End}}{{index .JournalSpec.Fragment.Stores 9223372036854775807}}{{end}}",
        "long-name": '{{if .Spool.End}}{{printf "%0400d" 1}}{{end}}',
    }
    for name, template in cases.items():
        journal = f"fuzz/template-{name}"
        steps = [
            apply(spec(journal, template=template)),
            append(journal, b"row\n"),
            _flush(journal),
        ]
        yield Case(f"template-{name}", [*steps, _delete(journal)])
        yield Case(f"template-parse-{name}", [_parse("template", template)])


def _claims() -> Iterator[Case]:
    wide = '{"include":{"labels":[{"name":"name","value":"mine/","prefix":true}]}}'
    for name, claims in {
        "key-unknown": '{"cap":4294967295,"exp":$EXP,"sel":{"includes":{"labels":[{"name":"name","value":"mine/spy"}]}}}',
        "key-cased": f'{{"CAP":4294967295,"Exp":$EXP,"SEL":{wide.upper().replace("MINE/", "mine/").replace("TRUE", "true")}}}',
        "keys-twice": f'{{"cap":2,"cap":4294967295,"exp":$EXP,"sel":{wide},"sel":{{"nope":1}}}}',
        "labels-unknown-key": '{"cap":4294967295,"exp":$EXP,"sel":{"include":{"label":[{"name":"name","value":"mine/spy"}]}}}',
        "label-unknown-key": '{"cap":4294967295,"exp":$EXP,"sel":{"include":{"labels":[{"n4me":"name","val":"x"}]}}}',
        "cap-huge": f'{{"cap":{_DIGITS},"exp":$EXP}}',
        "cap-negative": f'{{"cap":-1,"exp":$EXP,"sel":{wide}}}',
        "cap-float": f'{{"cap":1e308,"exp":$EXP,"sel":{wide}}}',
        "exp-huge": f'{{"cap":31,"exp":1e308,"sel":{wide}}}',
        "exp-digits": f'{{"cap":31,"exp":{"9" * 400},"sel":{wide}}}',
        "exp-nan": f'{{"cap":31,"exp":NaN,"sel":{wide}}}',
        "deep": '{"cap":31,"exp":$EXP,"sel":' + "[" * 5000 + "]" * 5000 + "}",
        "surrogate": '{"cap":31,"exp":$EXP,"sel":{"include":{"labels":[{"name":"\\ud800","value":"x"}]}}}',
        "labels-huge": '{"cap":31,"exp":$EXP,"sel":{"include":{"labels":[' + ",".join(f'{{"name":"name","value":"v{i}"}}' for i in range(2000)) + "]}}}",
    }.items():  # fmt: skip
        arguments = {"token": "claims", "claims": claims}
        if name in {"key-unknown", "labels-unknown-key"}:  # if ignored, they would show all
            steps = [rpc("List", pb.ListRequest(), **arguments), _read(HIDDEN, **arguments)]
        else:
            steps = [rpc("List", pb.ListRequest(), **arguments), _read("mine/spy", **arguments)]
        yield Case(f"claims-{name}", steps)
        yield Case(f"claims-parse-{name}", [_parse("claims", claims.replace("$EXP", "1"))])
    for name, token in {
        "not-bearer": "Basic xx",
        "empty": "Bearer ",
        "dots": "Bearer ...",
        "none-algorithm": "Bearer eyJhbGciOiJub25lIn0.e30.",
        "header-not-object": "Bearer W10.e30.x",
        "long": "Bearer " + "a" * 6000,
    }.items():
        yield Case(f"token-{name}", [rpc("List", pb.ListRequest(), token=token)])
        yield Case(f"token-parse-{name}", [_parse("token", token.removeprefix("Bearer "))])
    taken = spec(HIDDEN, labels=labels(("aa", "mine")))
    by_label = {"token": "claims", "claims": '{"cap":4294967295,"exp":$EXP,"sel":{"include":{"labels":[{"name":"aa","value":"mine"}]}}}'}  # fmt: skip
    yield Case("take-over-by-relabelling", [apply(taken, **by_label), _read(HIDDEN, **by_label)])
    yield Case(
        "nested-name-shows",
        [apply(spec(f"{HIDDEN}/x"), token="mine"), apply(spec("secret"), token="mine")],
    )


def _labels() -> Iterator[Case]:
    entries = b"".join(blob(1, blob(1, "name") + blob(2, b"%07d" % i)) for i in range(200_000))
    excludes = blob(1, blob(2, entries))
    yield Case("list-excludes-200000", [rpc("List", excludes, token="mine", timeout_s=4.0)])
    yield Case(
        "list-includes-200000",
        [rpc("List", blob(1, blob(1, entries)), token="mine", timeout_s=4.0)],
    )
    bad = pb.ListRequest(watch=True, watch_resume=pb.Header(etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=(1 << 63) - 1, raft_term=1)))  # fmt: skip
    yield Case(
        "list-resumes-in-the-far-future", [rpc("List", bad, token="mine", end="hold", times=5)]
    )
    watch = pb.ListRequest(watch=True)
    yield Case("list-watches-held", [rpc("List", watch, token="mine", end="hold", times=40)])
    many = labels(*[("aa", f"{i:05d}" + "v" * 1000) for i in range(2200)])
    for field in ("union_registers", "subtract_registers"):
        yield Case(f"append-{field}-2-MB", [append("fuzz/a", b"x", fields={field: many}, times=2, timeout_s=3.0), append("fuzz/a", b"y", timeout_s=3.0)])  # fmt: skip
    check = pb.LabelSelector(exclude=many)
    yield Case(
        "append-checks-2-MB",
        [append("fuzz/a", b"x", fields={"check_registers": check}, timeout_s=3.0)],
    )
    long = labels(*sorted((f"l{i:04d}", "x") for i in range(3000)))
    yield Case("append-registers-of-many-names", [append("fuzz/b", b"x", fields={"union_registers": long}, timeout_s=3.0), _flush("fuzz/b")])  # fmt: skip


def _specs() -> Iterator[Case]:
    for name, offset in {"max": (1 << 63) - 1, "near-max": (1 << 63) - 9, "large": 1 << 62}.items():
        journal = f"fuzz/suspend-{name}"
        wanted = spec(journal)
        wanted.suspend.level, wanted.suspend.offset = pb.JournalSpec.Suspend.FULL, offset
        yield Case(f"suspend-offset-{name}", [apply(wanted), append(journal, b"x" * 20), append(journal, b"x" * 20), _flush(journal), _read(journal, offset=-1), _delete(journal)])  # fmt: skip
    for name, change in {
        "length-max": {"length": 1 << 34},
        "length-overflow": {"length": (1 << 63) - 1},
        "codec-unknown": {"compression_codec": 77},
        "codec-offload": {"compression_codec": 5},
    }.items():
        wanted = spec(f"fuzz/spec-{name}")
        for key, value in change.items():
            setattr(wanted.fragment, key, value)
        yield Case(f"spec-{name}", [apply(wanted), append(wanted.name, b"x"), _flush(wanted.name)])
    for name, seconds, nanos in (
        ("max", (1 << 63) - 1, 999_999_999),
        ("min", -(1 << 63), -1),
        ("nanos", 1, (1 << 31) - 1),
    ):
        for field in ("refresh_interval", "flush_interval", "retention"):
            wanted = spec("fuzz/spec-duration")
            getattr(wanted.fragment, field).seconds, getattr(wanted.fragment, field).nanos = (
                seconds,
                nanos,
            )
            yield Case(f"spec-{field}-{name}", [apply(wanted), append(wanted.name, b"x")])
    yield Case("spec-of-4000-stores", [apply(spec("fuzz/stores", *[f"file:///fuzz/s{i}/" for i in range(4000)]), timeout_s=3.0), append("fuzz/stores", b"x"), _delete("fuzz/stores")])  # fmt: skip
    yield Case(
        "apply-of-1000-changes",
        [rpc("Apply", upsert(*[spec(f"fuzz/many-{i}") for i in range(1000)]), timeout_s=3.0)],
    )
    again = upsert(spec("fuzz/twice"), spec("fuzz/twice"))
    yield Case("apply-twice-the-same", [rpc("Apply", again)])
    wide = spec("fuzz/labels", labels=labels(*[("aa", f"{i:05d}") for i in range(100_000)]))
    yield Case("spec-of-100000-labels", [apply(wide, timeout_s=4.0), _delete("fuzz/labels")])
    offsets = {f"fuzz/{i:06d}": 1 for i in range(30_000)}
    point = admin_pb.PutSavepointRequest(savepoint=admin_pb.Savepoint(name="many", offsets=offsets))
    yield Case("savepoint-of-30000-offsets", [rpc(_A + "PutSavepoint", point, timeout_s=3.0)])
    for name in ("", "../x", "a\0b", "x" * 5000, "a#b", "kobold-poin", "kobold-point"):
        put = admin_pb.PutSavepointRequest(
            savepoint=admin_pb.Savepoint(name=name, offsets={"mine/spy": -5}), replace=True
        )
        ask = [rpc(_A + m, kind(name=name), token="mine") for m, kind in (("GetSavepoint", admin_pb.GetSavepointRequest), ("DeleteSavepoint", admin_pb.DeleteSavepointRequest))]  # fmt: skip
        yield Case(f"savepoint-{name[:12]!r}", [rpc(_A + "PutSavepoint", put, token="mine"), *ask])


_ME, _OTHER = "a#broker-1", "b#broker-2"
_GOOD = spec("fuzz/poked").SerializeToString()
_POKED: dict[str, list[tuple[str, bytes]]] = {
    "slot-of-5000-digits": [(f"/assign/fuzz/a#{_ME}#{_DIGITS}", b"")],
    "slot-of-another-script": [
        (f"/assign/fuzz/a#{_ME}#\u0663", b""),
        (f"/assign/fuzz/a#{_ME}#-1", b""),
    ],
    "slot-beyond": [(f"/assign/fuzz/b#{_OTHER}#{1 << 70}", b"")],
    "two-slots-of-a-member": [(f"/assign/fuzz/a#{_ME}#7", b""), (f"/assign/fuzz/a#{_ME}#8", b"")],
    "two-primaries-of-a-member": [
        (f"/assign/fuzz/b#{_ME}#0", b""),
        (f"/assign/fuzz/b#{_ME}#00", b""),
    ],
    "primary-twice": [(f"/assign/fuzz/a#{_ME}#0", b""), (f"/assign/fuzz/a#{_OTHER}#0", b"")],
    "assignment-without-member": [
        ("/assign/fuzz/a#zz#ghost#1", b""),
        ("/assign/fuzz/none#zz#ghost#0", b""),
    ],
    "assignment-route-junk": [
        (f"/assign/fuzz/a#{_OTHER}#4", b"\xff\xff"),
        (f"/assign/fuzz/b#{_OTHER}#1", b"\x10\x05"),
    ],
    "parts-missing": [
        ("/assign/", b""),
        ("/assign/fuzz/a", b""),
        ("/members/", b""),
        ("/items/", b""),
        ("/members/#", b""),
    ],
    "parts-too-many": [
        ("/items/a#b", _GOOD),
        ("/members/a#b#c", b""),
        (f"/assign/a#{_ME}#0#0", b""),
    ],
    "kinds-unknown": [
        ("/nope/x", b""),
        ("", b"x"),
        ("-other/items/fuzz/a", _GOOD),
        ("/items", b"x"),
    ],
    "item-of-another-name": [("/items/fuzz/poked-2", _GOOD)],
    "item-junk": [
        ("/items/fuzz/junk", b"\xff" * 100),
        ("/items/fuzz/empty", b""),
        ("/items/fuzz/nul\0", _GOOD),
    ],
    "item-of-hostile-name": [
        ("/items/../../x", spec("../../x").SerializeToString()),
        ("/items//abs", spec("/abs").SerializeToString()),
    ],
    "item-nested": [
        ("/items/fuzz/a/b", spec("fuzz/a/b").SerializeToString()),
        ("/items/fuzz", spec("fuzz").SerializeToString()),
    ],
    "item-1-MB": [
        (
            "/items/fuzz/big",
            spec(
                "fuzz/big", labels=labels(*[("aa", f"{i:09d}" * 50) for i in range(2400)])
            ).SerializeToString(),
        )
    ],
    "item-template": [
        (
            "/items/fuzz/tpl",
            spec(
                "fuzz/tpl", template='{{if .Spool.End}}{{printf "%c" 55296}}{{end}}'
            ).SerializeToString(),
        )
    ],
    "item-store-nul": [("/items/fuzz/nul", spec("fuzz/nul", "file:///x%00y/").SerializeToString())],
    "member-junk": [
        ("/members/zz#ghost", b"\xff"),
        ("/members/zz#empty", b""),
        ("/members/z\u00e9#é", b"\x08"),
    ],
    "member-of-another-id": [
        (
            "/members/zz#ghost",
            number(2, 1)
            + blob(1, blob(1, blob(1, "a") + blob(2, "broker-1")) + blob(2, "http://x:1")),
        )
    ],
    "side-keys": [
        ("/evict/x", b"\xff"),
        ("/savepoints/x", b"\xff"),
        ("/heads/fuzz/a", b"\xff" * 20),
        ("-savepoints/x", b"\xff"),
    ],
}
"""Tails of keys that no broker writes, and their values."""


def _keys() -> Iterator[Case]:
    for name, puts in _POKED.items():
        uses = [
            append("fuzz/a", b"x"),
            _read("fuzz/a"),
            rpc(_A + "ListSavepoints", admin_pb.ListSavepointsRequest()),
        ]
        yield Case(f"key-{name}", [_etcd(*puts), _wait(0.4), *uses])
        yield Case(
            f"key-parse-{name}",
            [_parse("key", tail.encode(errors="surrogatepass")) for tail, _ in puts],
        )


def _http() -> Iterator[Case]:
    yield Case(
        "offset-of-5000-digits",
        [get(f"/mine/spy?offset={_DIGITS}"), get(f"/mine/spy?offset=-{_DIGITS}")],
    )
    yield Case(
        "last-event-id-of-5000-digits",
        [get("/mine/spy", _ACCEPT_EVENTS[:-2], f"Last-Event-ID: {_DIGITS}".encode())],
    )
    yield Case("offsets-odd", [get(f"/mine/spy?offset={o}") for o in ("", "+", "-", "+-1", "%D9%A3", "1e3", "0x1", "9223372036854775808", "-2", "%00")])  # fmt: skip
    yield Case("authorization-not-ascii", [get("/mine/spy", b"Authorization: Bearer \xe9\xff"), get("/mine/spy", "Authorization: Bearer é.é.é".encode())])  # fmt: skip
    yield Case("range-headers", [get("/mine/spy", b"Range: " + r) for r in (b"bytes=0-", b"bytes=-1", b"bytes=9-1", b"lines=1", b"bytes=" + b"9" * 5000 + b"-")])  # fmt: skip
    yield Case("hosts", [{"do": "http", "raw": b"GET /mine/spy HTTP/1.1\r\nHost: " + h + b"\r\nAuthorization: Bearer {TOKEN:mine}\r\nConnection: close\r\n\r\n"} for h in (b"evil.example", b"", b"[::1", b"\xff", b"a" * 5000, b"127.0.0.1:99999", b"x\0y")])  # fmt: skip
    yield Case(
        "origins",
        [
            get("/mine/spy", b"Origin: " + o)
            for o in (b"null", b"http://evil.example", b"\xff", b"http://[", b"x" * 5000)
        ],
    )
    yield Case(
        "methods",
        [
            get("/mine/spy", method=m)
            for m in (
                "POST",
                "DELETE",
                "TRACE",
                "CONNECT",
                "PATCH",
                "G\u00cbT",
                "X" * 300,
                "OPTIONS",
                "get",
            )
        ],
    )
    yield Case("paths", [get(p) for p in ("/", "//", "/%", "/%ff", "/..%2f..", "/%00", "/debug/../mine/spy", "/debug/metrics", "/debug/", "*", "http://evil/mine/spy", "/mine/spy;meta", "/mine/spy;", "/" + "a" * 7000, "/mine/spy?%ff=%fe", "/mine/spy?offset=1&offset=x", "/mine%0d%0aX:1/spy")])  # fmt: skip
    yield from _http_bodies()


def _http_bodies() -> Iterator[Case]:
    put = {"method": "PUT"}
    yield Case("bodies", [
        get("/mine/spy", b"Content-Length: 100", body=b"short", **put, end="cancel"),
        get("/mine/spy", b"Content-Length: -1", **put), get("/mine/spy", b"Content-Length: " + b"9" * 5000, **put),
        get("/mine/spy", b"Transfer-Encoding: chunked", body=b"zz\r\n", **put),
        get("/mine/spy", b"Transfer-Encoding: chunked", body=b"5\r\nab", **put, end="cancel"),
        get("/mine/spy", b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n", **put),
        get("/mine/spy", b"Content-Encoding: gzip", b"Content-Length: 3", body=b"abc", **put),
        get("/mine/spy", b"Expect: 100-continue", b"Content-Length: 3", **put, end="cancel"),
        get("/mine/spy", b"Expect: nonsense", b"Content-Length: 0", **put),
    ])  # fmt: skip
    raw = [b"GET", b"GET / HTTP/1.1\r\nHost:", b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /mine/spy HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n", b"GET /mine/spy HTTP/1.1\r\nHost: {HOST}\r\nX: " + b"y" * 70_000, b"GET / HTTP/1.1\r\nHost: {HOST}\r\nA\0: b\r\n\r\n"]  # fmt: skip
    yield Case(
        "half-and-broken-requests",
        [{"do": "http", "raw": r, "end": e} for r in raw for e in ("close", "hold")],
    )
    binary = bytes(range(256)) * 2000
    yield Case("events-of-binary", [append("mine/spy", binary, token="mine", timeout_s=3.0), get("/mine/spy?offset=0", b"Accept: text/event-stream", timeout_s=2.0), get("/mine/spy?offset=0&block=true", b"Accept: text/event-stream", end="hold", times=3)])  # fmt: skip
    yield Case(
        "events-held",
        [get("/mine/spy?offset=0&block=true", b"Accept: text/event-stream", end="hold", times=20)],
    )
    yield Case(
        "readers-that-leave",
        [
            get("/mine/spy?offset=0&block=true", end="cancel", times=30),
            get("/mine/spy?offset=0", end="cancel", times=30),
        ],
    )
    yield Case(
        "tails-to-be-hidden",
        [get(f"/{HIDDEN}?offset=0"), get(f"/{ABSENT}?offset=0"), get(f"/{HIDDEN}", method="HEAD")],
    )


def _memory() -> Iterator[Case]:
    # A broker keeps what a stream has sent until the stream commits, which this one never does.
    first, piece = pb.AppendRequest(journal="mine/two"), pb.AppendRequest(content=bytes(1 << 20))
    yield Case(
        "appends-stalled",
        [
            rpc("Append", first, piece, piece, piece, piece, token="mine", end="hold", times=90),
            _wait(1.0),
        ],
    )
    line = b"x" * 1023 + b"\n"
    fill = [
        append(
            "mine/two", line * 1000, line * 1000, line * 1000, token="mine", times=4, timeout_s=3.0
        )
    ]
    yield Case(
        "readers-stalled", [*fill, get("/mine/two?offset=0", end="hold", times=150), _wait(1.0)]
    )
    read = rpc(
        "Read", pb.ReadRequest(journal="mine/two", block=True), token="mine", end="hold", times=60
    )
    yield Case("reads-stalled", [*fill, read, _wait(1.0)])
    slow = get(
        "/mine/two",
        b"Content-Length: 100000000",
        body=bytes(3 << 20),
        method="PUT",
        end="hold",
        times=40,
    )
    yield Case("puts-stalled", [slow, _wait(1.0)])


def _wholes() -> Iterator[Case]:
    whole = pb.AppendRequest(journal="fuzz/a").SerializeToString()
    bit = pb.AppendRequest(content=b"x")
    wholes = {
        "none": b"", "no-content": whole, "content-only": bit, "content-first": bit.SerializeToString() + whole, "content-often": whole + b"\x22\x01x" * 100_000,
        "junk": b"\xff\xff", "cut": whole + b"\x22\x05x", "unknown": whole + b"\x98\x06\x01" * 100_000, "large": whole + pb.AppendRequest(content=bytes(3 << 20)).SerializeToString(),
        "too-large": whole + pb.AppendRequest(content=bytes(5 << 20)).SerializeToString(), "registers-only": pb.AppendRequest(journal="fuzz/a", union_registers=labels(("k", "v"))),
        "labels": whole + pb.AppendRequest(union_registers=labels(*[("", "")] * 300_000)).SerializeToString(), "no-text": b"\x12\x02\xff\xfe" + bit.SerializeToString(),
    }  # fmt: skip
    for name, message in wholes.items():
        yield Case(
            f"append-whole-{name}",
            [rpc(_A + "AppendWhole", message, token=token) for token in ("fuzz", "none", "read")],
        )


def _orders() -> Iterator[Case]:
    start, bit = pb.AppendRequest(journal="fuzz/a"), pb.AppendRequest(content=b"x")
    orders = {
        "none": [], "content-first": [bit, start], "twice": [start, start, b""], "after-commit": [start, bit, b"", bit],
        "commits": [start, b"", b""], "no-commit": [start, bit], "empty": [b"", b"", b""], "junk": [start, b"\xff\xff", b""],
        "both": [pb.AppendRequest(journal="fuzz/a", content=b"x"), b""],
    }  # fmt: skip
    for name, messages in orders.items():
        yield Case(
            f"append-order-{name}",
            [rpc("Append", *messages, end=e) for e in ("close", "cancel", "hold")],
        )
    proposal = pb.ReplicateRequest(
        acknowledge=True, proposal=pb.Fragment(journal="fuzz/a", compression_codec=pb.GZIP)
    )
    far = pb.ReplicateRequest(acknowledge=True, proposal=pb.Fragment(journal="fuzz/a", begin=1 << 62, end=(1 << 63) - 1, compression_codec=pb.GZIP, sum=pb.SHA1Sum(part1=1)))  # fmt: skip
    content = pb.ReplicateRequest(content=b"abc", content_delta=0)
    gap = pb.ReplicateRequest(content=b"abc", content_delta=(1 << 63) - 3)
    bodies = {
        "none": [], "content-first": [content], "proposal": [proposal], "gap": [proposal, content, gap], "far": [far, content, far],
        "content": [proposal, content, proposal], "junk": [proposal, b"\xff"], "same": [proposal, proposal, proposal],
    }  # fmt: skip
    for name, messages in bodies.items():
        for broker in (0, 1):
            forged = {"process_id.zone": "ab"[broker], "process_id.suffix": f"broker-{broker + 1}"}
            yield Case(f"replicate-{name}-at-{broker + 1}", [rpc("Replicate", *messages, broker=broker, header=h) for h in (forged, {}, {"etcd.cluster_id": 1} | forged, None)])  # fmt: skip
    read, ghost = pb.ReadRequest(journal="fuzz/a"), pb.Route(members=[pb.ProcessSpec.ID(zone="z", suffix="ghost")], endpoints=["http://127.0.0.1:1"])  # fmt: skip
    for name, header in {
        "far-revision": {"etcd.revision": (1 << 63) - 1}, "other-cluster": {"etcd.cluster_id": 5}, "other-process": {"process_id.suffix": "ghost"},
        "primary-beyond": {"route.primary": 99}, "no-term": {"etcd.raft_term": 0},
    }.items():  # fmt: skip
        asks = [rpc("Read", read, header=header, route=ghost.SerializeToString())]
        asks += [
            rpc("Append", start, bit, b"", header=header),
            rpc(_A + "AppendWhole", start, header=header),
            rpc("ListFragments", pb.FragmentsRequest(journal="fuzz/a"), header=header),
        ]
        asks += [rpc(_A + "Flush", admin_pb.FlushRequest(journal="fuzz/a"), header=header)]
        asks += [rpc(_A + "ResetHead", admin_pb.ResetHeadRequest(journal="fuzz/a"), header=header)]
        yield Case(f"header-{name}", asks)
    revision = (1 << 63) - 1
    yield Case("revisions-that-never-come", [rpc("Read", pb.ReadRequest(journal="fuzz/a", min_etcd_revision=revision), end="cancel", times=300)])  # fmt: skip
    block = pb.ReadRequest(journal="fuzz/a", offset=-1, block=True)
    yield Case(
        "blocking-reads-cancelled",
        [rpc("Read", block, end="cancel", times=100), rpc("Read", block, timeout_s=0.01, times=50)],
    )
    reads = [pb.ReadRequest(journal="fuzz/a", offset=o, end_offset=e, begin_mod_time=m) for o, e, m in ((0, (1 << 63) - 1, 0), ((1 << 63) - 1, 0, 0), (0, 0, (1 << 63) - 1), (-1, 1, 1), (5, 4, 0), (-2, 0, 0))]  # fmt: skip
    yield Case("read-extremes", [rpc("Read", r) for r in reads])
    far_append = [
        append("fuzz/c", b"x", fields={"offset": o})
        for o in ((1 << 63) - 1, (1 << 63) - 2, 1 << 62, 1)
    ]
    yield Case(
        "append-at-far-offsets", [*far_append, append("fuzz/c", b"y"), _read("fuzz/c", offset=-1)]
    )
    yield Case(
        "append-suspends",
        [append("fuzz/b", b"x", fields={"suspend": s}) for s in (3, 0, 2, 1, 4, 99, -1)],
    )
    ttl = pb.FragmentsRequest(journal="fuzz/a")
    ttl.signatureTTL.seconds = (1 << 63) - 1
    yield Case("fragments-signed-for-ever", [rpc("ListFragments", ttl), rpc("ListFragments", pb.FragmentsRequest(journal="fuzz/a", page_limit=-1, next_page_token=(1 << 63) - 1))])  # fmt: skip
    yield Case("messages-too-large", [rpc("Append", start, pb.AppendRequest(content=bytes(5 << 20)), b""), rpc("List", bytes(5 << 20)), rpc("Apply", b"\x0a" * (3 << 20))])  # fmt: skip
    yield Case("metadata-huge", [rpc("List", pb.ListRequest(), metadata=[["x-" + "k" * 100, "v" * 7000]]), rpc("List", pb.ListRequest(), metadata=[[f"k{i}", "v"] for i in range(200)])])  # fmt: skip
    yield Case("metadata-odd", [rpc("List", pb.ListRequest(), metadata=m) for m in ([["authorization", "Bearer x"]], [["a-bin", b"\xff\0"]], [["grpc-timeout", "99999999H"]], [["grpc-encoding", "nope"]])])  # fmt: skip
    yield from _http2()


def _http2() -> Iterator[Case]:
    path = b"/protocol.Journal/List"
    good = request(path, b"\0\0\0\0\0")
    odd = {
        "good": good, "half-preface": preface()[:10], "half": good[:-3], "long-message": request(path, b"\0\xff\xff\xff\xff"),
        "compressed": request(path, b"\1\0\0\0\1\0"), "flag-9": request(path, b"\x09\0\0\0\0"), "short-prefix": request(path, b"\0\0"),
        "unknown-method": request(b"/protocol.Journal/Nope", b""), "odd-path": request(b"\xff\xfe", b""), "no-path": request(b"", b""),
        "token-not-ascii": request(path, b"\0\0\0\0\0", (b"authorization", b"Bearer \xe9\xff\0")),
        "timeout-odd": request(path, b"\0\0\0\0\0", (b"grpc-timeout", b"99999999999999S")),
        "headers-10000": preface() + headers_frame(path, *[(b"k%d" % i, b"v") for i in range(5000)]),
        "settings-odd": preface() + struct.pack(">I", 6)[1:] + b"\x04\0\0\0\0\0" + b"\0\x04\xff\xff\xff\xff",
        "ping-flood": preface() + (b"\0\0\x08\x06\0\0\0\0\0" + b"x" * 8) * 5000,
        "resets": preface() + b"".join(headers_frame(path, stream=2 * i + 1) + b"\0\0\x04\x03\0" + struct.pack(">II", 2 * i + 1, 8) for i in range(2000)),
        "http1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    }  # fmt: skip
    for name, raw in (odd | attacks()).items():
        yield Case(
            f"http2-{name}",
            [{"do": "tcp", "raw": raw, "end": e, "timeout_s": 0.5} for e in ("close", "hold")],
        )


def _parsers() -> Iterator[Case]:
    merges = "a0: &a0 {k: 1}\n" + "".join(
        f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 11)
    )
    table = (
        "name: a.b\nselector: name:prefix=x/\nformat: json\ncolumns: [{name: x, type: string}]\n"
    )
    texts: dict[str, list[str]] = {
        "tree": [merges, "name: " + _DIGITS, f"name: a\nreplication: {_DIGITS}", "[" * 3000, "{a: " * 500, "&a [*a]", "? ? ? ?", "!!python/object:x {}", "a: !!int x", "name: &x\n  *x", "\ud800", "- " * 5000, "name: 1:60:60", "name: 2001-99-99", "name: !!binary x=", "name: !!float 1e" + _DIGITS, "a: |" + " " * 3000, "%YAML 99", "\0"],
        "table": [merges + table, table + f"fresh_within: {_DIGITS}h", table.replace("string", _DIGITS), table.replace("string", "struct<" * 500), table.replace("string", f"decimal({_DIGITS},1)"), table + f"x: {_DIGITS}", f"name: {_DIGITS}\nselector: {_DIGITS}", table + "partitions: [{name: x, type: " + _DIGITS + "}]"],
        "selector": ["a in (" + "b," * 100_000 + "c)", "a" * 100_000, "!" * 10_000, "a=" * 10_000, "a in (" * 5000, "," * 10_000, "a" + " " * 50_000 + "in (b)", "é=½", "a:prefix:prefix=b", "aa=b" + " " * 100_000],
        "duration": [_DIGITS + "h", "1" * 5000, "1." + _DIGITS + "s", "-" * 5000, "1h" * 5000, "٣s", "+-1s", ".s", "9223372036854775807ns", "1e3s", "1µs1μs"],
        "fragment": [f"{'f' * 16}-{'f' * 16}-{'0' * 40}.gz", f"{0:016x}-{1:016x}-{'0' * 40}.gz" + "/x" * 3000, "/" * 5000, "-" * 5000, f"+{0:015x}-{1:016x}-{'0' * 40}.gz", f"{0:016x}-{1:016x}-{'g' * 40}", "٣" * 16 + "-" + "0" * 16 + "-" + "0" * 40 + ".gz"],
        "store": ["file:///x%00y/", "file:///?" + "&".join(f"k{i}=1" for i in range(5000)), "http://[::1/", "s3://[x/", "file:///" + "%2e%2e/" * 1000, "\0", "file:///\ud800/", "s3://b:99999999999/x/", "file:///" + "/" * 5000],
        "layout": ["/" * 5000, "a=b/" * 3000, "=" * 1000, "{x}", "a={a}/b={a}"],
        "query": [_DIGITS, "-" + _DIGITS, "٣", "+", "1_000", " 1", "0x10"],
        "path": ["/%ff", "/%", "/" + "%41" * 5000, "/\udcff"],
        "keys": ["AA==", "=", "A", "AA== AA==", ",,,", "é", "YQ== " * 5000],
        "claims": ["[]", "1", '{"sel":[]}', '{"cap":' + "9" * 4000 + "}", "{" * 3000],
        "uuid": ["83fc2f95-cc5f-11e9-8000-0702030405  ", "{" * 5000, "urn:uuid:", "-" * 36, "٣" * 32, "1_" * 18],
        "token": ["a.b.c", "." * 5000, "é.é.é", "e30.e30.e30", "bnVsbA.bnVsbA.x"],
    }  # fmt: skip
    for target, found in texts.items():
        for index, text in enumerate(found):
            yield Case(
                f"parse-{target}-{index}", [_parse(target, text.encode(errors="surrogatepass"))]
            )
    blobs = {
        "gzip": [bomb(80), bomb(1)[:-4], b"\x1f\x8b" * 1000, gzip.compress(b"") * 2000, gzip.compress(b"x") + b"junk"],
        "snappy": [b"\xff\x06\0\0sNaPpY" * 1000, b"\xff\x06\0\0sNaPpY\x01\xff\xff\xff", b"\xff\x06\0\0sNaPpY\x00\x05\0\0\0\0\0\0\xff"],
        "zstandard": [b"\x28\xb5\x2f\xfd\xff" + b"\xff" * 20, b"\x50\x2a\x4d\x18\xff\xff\xff\xff", b"\x28\xb5\x2f\xfd"],
        "content": [b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 30, b"\x22", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"],
        "framing": [b"\x66\x33\x93\x36\xff\xff\xff\xff", b"\x66\x33\x93\x36\0\0\0\0" * 1000, b"\x66"],
        "json_messages": [b"[" * 60_000 + b"\n", b'{"UUID":' * 5000 + b"\n", b'{"UUID":[]}\n{"UUID":1e999}\n', b"\n" * 5000, b'"\\ud800"\n', b"9" * 5000 + b"\n"],
        "csv_messages": [b'"' * 60_001 + b"\n", b'a,"' * 20_000 + b"\n", b'"x\n' * 20_000, b'"",' * 20_000 + b"\n", b"\n" * 60_000, b"\r\n,\n\xff\n", b"\n\n,"],
        "proto_messages": [b"\x66\x33\x93" * 20_000, b"\x66\x33\x93\x36\xff\xff\xff\xff" * 8000, b"\x66\x33\x93\x36\0\0\0\0" * 8000 + b"\n", b"\x66" * 60_000],
        "spec": [b"\xff" * 100, blob(4, b"\x22\x02\x08\x01"), json.dumps({}).encode()],
        "route": [b"\x10\x05", number(2, -5), blob(1, b"") * 1000],
    }  # fmt: skip
    for target, found in blobs.items():
        for index, raw in enumerate(found):
            yield Case(f"parse-{target}-{index}", [_parse(target, raw)])


def _twins() -> Iterator[Case]:
    me, hidden = {"token": "mine"}, HIDDEN
    steps = {
        "read": _read(hidden, **me), "append": append(hidden, b"x", **me), "fragments": _list_fragments(hidden, "mine"),
        "flush": _flush(hidden, "mine"), "reset": _reset_head(hidden, "mine"), "apply": apply(spec(hidden), **me), "delete": _delete(hidden, **me), "nested": apply(spec(hidden + "/x"), **me),
        "savepoint": rpc(_A + "PutSavepoint", admin_pb.PutSavepointRequest(savepoint=admin_pb.Savepoint(name="mine", offsets={hidden: 1})), **me),
        "registers": append(hidden, b"", fields={"check_registers": pb.LabelSelector(include=labels(("kk", "x")))}, **me),
        "store": rpc("FragmentStoreHealth", pb.FragmentStoreHealthRequest(fragment_store=f"file:///{hidden}/"), **me),
        "create": rpc("Apply", pb.ApplyRequest(changes=[pb.ApplyRequest.Change(upsert=spec(hidden))]), **me),
        "get": get(f"/{hidden}?offset=0"), "head": get(f"/{hidden}", method="HEAD"), "put": get(f"/{hidden}", b"Content-Length: 1", method="PUT", body=b"x"),
    }  # fmt: skip
    for name, step in steps.items():
        yield Case(f"twin-{name}", [{"do": "twin", "step": step}])


def _read(journal: str, *, offset: int = 0, **arguments: Any) -> Step:
    return rpc("Read", pb.ReadRequest(journal=journal, offset=offset), **arguments)


def _list_fragments(journal: str, token: str) -> Step:
    return rpc("ListFragments", pb.FragmentsRequest(journal=journal), token=token)


def _reset_head(journal: str, token: str) -> Step:
    request = admin_pb.ResetHeadRequest(journal=journal, give_up=True)
    return rpc(_A + "ResetHead", request, token=token)


def _flush(journal: str, token: str = "fuzz") -> Step:
    return rpc(_A + "Flush", admin_pb.FlushRequest(journal=journal), token=token)


def _delete(journal: str, token: str = "fuzz") -> Step:
    change = pb.ApplyRequest.Change(delete=journal, expect_mod_revision=-1)
    return rpc("Apply", pb.ApplyRequest(changes=[change]), token=token)
