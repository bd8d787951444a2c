"""Makes cases from a seed: the n-th case depends only on the seed and on n, and on no clock.

A third of them are mutations of the corpus. The others come from a grammar for each kind of input.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import TYPE_CHECKING, Any

from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.fuzz.arena import HIDDEN, JOURNALS
from tests.fuzz.cases import Case, Step
from tests.fuzz.corpus import append, apply, corpus, get, rpc, spec
from tests.fuzz.driver import METHODS
from tests.fuzz.frames import sequence
from tests.fuzz.grammar import Grammar
from tests.fuzz.http2 import headers_frame, preface, request
from tests.fuzz.parsers import PARSERS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "make_case"]

_APPEND, _REPLICATE = "/protocol.Journal/Append", "/protocol.Journal/Replicate"
_APPEND_WHOLE = "/gazette_platform.Admin/AppendWhole"
_TOKENS = ["fuzz"] * 6 + ["mine", "mine", "none", "expired", "read", "list", "append", "Bearer x"]
_ENDS = ["close"] * 8 + ["cancel", "hold"]
_PARSES = 20


def make_case(seed: int, number: int, *, kinds: tuple[str, ...] = ()) -> Case:
    """The case of this number.

    Args:
        seed: of the run.
        number: of the case.
        kinds: some of `KINDS`; empty: all of them, and mutations.
    """
    rng = Random(f"{seed}/{number}")
    grammar = Grammar(rng, JOURNALS)
    if not kinds and rng.random() < 0.3:
        return _mutation(grammar, number)
    names = kinds or tuple(KINDS)
    kind = rng.choices(names, [_WEIGHTS.get(name, 1) for name in names])[0]
    return Case(f"{number}-{kind}", KINDS[kind](grammar))


def _mutation(grammar: Grammar, number: int) -> Case:
    """A case of the corpus with other bytes, or with its steps in another order."""
    while True:
        origin = grammar.rng.choice(corpus())
        # Large cases run only as they are. Mutants of etcd keys might become members by accident.
        if _size(origin.steps) < 1 << 16 and not any(
            s["do"] in _KEPT or s.get("times") for s in origin.steps
        ):
            break
    steps = copy.deepcopy(origin.steps)
    for step in steps:
        _mutate(grammar, step)
    if grammar.chance(0.1):
        grammar.rng.shuffle(steps)
    return Case(f"{number}-of-{origin.name}", steps)


_KEPT = {"etcd", "twin", "wait"}


def _mutate(grammar: Grammar, step: Step) -> None:
    if step.get("messages"):
        at = grammar.rng.randrange(len(step["messages"]))
        step["messages"][at] = grammar.mutate(step["messages"][at])
    for key in ("raw", "text"):
        if key in step and grammar.chance(0.8):
            step[key] = grammar.mutate(step[key])
    for entry in step.get("files", []):
        entry[1] = grammar.mutate(entry[1])
    if "broker" not in step and grammar.chance(0.3):
        step["broker"] = 1


def _size(value: Any) -> int:
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, dict):
        return _size(list(value.values()))
    if isinstance(value, list):
        return sum(map(_size, value))
    return 8


# ------------------------------------------------------------------ kinds


def _calls(grammar: Grammar) -> list[Step]:
    """RPCs that are well-formed, or almost."""
    method = grammar.rng.choice(list(METHODS))
    step = rpc(method, *_messages(grammar, method), **_who(grammar))
    step["end"] = grammar.rng.choice(_ENDS)
    if grammar.chance(0.3):
        step["header"] = _forged(grammar)
    if grammar.chance(0.1):
        step["metadata"] = [
            grammar.rng.choice(
                (["x-a", grammar.words(5)], ["a-bin", b"\xff\0"], ["grpc-timeout", "5"])
            )
        ]
    if grammar.chance(0.2):
        step["route"] = grammar.fill(pb.Route()).SerializeToString()
    return [step]


def _messages(grammar: Grammar, method: str) -> list[bytes]:
    kind = METHODS[method]
    if method == _APPEND_WHOLE and grammar.chance(0.7):
        whole = _append_request(grammar)
        whole.content = grammar.content()
        raw = whole.SerializeToString()
        return [grammar.mutate(raw) if grammar.chance(0.2) else raw]
    if not kind.is_stream_in:
        return [_bytes(grammar, kind.request, 0.4)]
    if method == _APPEND and grammar.chance(0.7):
        first = _append_request(grammar)
        pieces = [
            pb.AppendRequest(content=grammar.content()) for _ in range(grammar.rng.randint(0, 3))
        ]
        messages = [m.SerializeToString() for m in (first, *pieces)] + [b""]
        if grammar.chance(0.2):
            grammar.rng.shuffle(messages)
        return messages
    return [_bytes(grammar, kind.request, 0.3) for _ in range(grammar.rng.randint(0, 4))]


def _append_request(grammar: Grammar) -> pb.AppendRequest:
    """A request without content, of a journal that may exist."""
    request = grammar.fill(pb.AppendRequest(), density=0.3)
    request.ClearField("content")
    request.ClearField("header")
    request.journal = grammar.journal().encode(errors="replace").decode()
    return request


def _bytes(grammar: Grammar, kind: Any, density: float) -> bytes:
    if grammar.chance(0.05):
        return grammar.rng.randbytes(grammar.rng.choice((0, 1, 9, 100)))
    raw = grammar.fill(kind(), density=density).SerializeToString()
    return grammar.mutate(raw) if grammar.chance(0.25) else raw


def _who(grammar: Grammar) -> dict[str, Any]:
    return {
        "token": grammar.rng.choice(_TOKENS),
        "broker": grammar.rng.randint(0, 1),
        "timeout_s": grammar.rng.choice((0.02, 0.3, 0.3, 1.0)),
    }


def _forged(grammar: Grammar) -> dict[str, Any]:
    forged: dict[str, Any] = {}
    for path, values in {
        "process_id.zone": ("a", "b", "zz", ""),
        "process_id.suffix": ("broker-1", "broker-2", "ghost", ""),
        "etcd.revision": (1, 5, 1 << 40, (1 << 63) - 1, 0, -1),
        "etcd.cluster_id": (0, 1),
        "route.primary": (0, 1, 9, -2),
    }.items():
        if grammar.chance(0.35):
            forged[path] = grammar.rng.choice(values)
    return forged


def _requests(grammar: Grammar) -> list[Step]:
    """HTTP requests that are odd in one place or several."""
    rng = grammar.rng
    path = "/" + rng.choice((grammar.journal(), "mine/spy", "mine/two", HIDDEN, grammar.text(2)))
    if grammar.chance(0.6):
        path += (
            "?" + rng.choice(("offset=", "block=", "offset=0&block=", "x=", "")) + grammar.text(2)
        )
    path = path.replace(" ", "%20").replace("\n", "%0a").replace("\r", "%0d").replace("\0", "%00")
    headers = [
        rng.choice(
            (
                b"Accept: text/event-stream",
                b"Range: bytes=",
                b"Origin: ",
                b"Last-Event-ID: ",
                b"X-A: ",
            )
        )
        + grammar.text(2).replace("\n", "").replace("\r", "").encode(errors="replace")
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    method, body = (
        rng.choice(
            ("GET", "GET", "HEAD", "PUT", "OPTIONS", "POST", grammar.words(4).strip() or "X")
        ),
        b"",
    )
    if method == "PUT":
        body = grammar.content()
        headers.append(b"Content-Length: %d" % (len(body) + rng.choice((0, 0, 0, 5, -1))))
    step = get(
        path,
        *headers,
        method=method,
        body=body,
        end=rng.choice(("close", "close", "cancel", "hold")),
    )
    step["raw"] = step["raw"].replace(b"surrogate", b"")
    if grammar.chance(0.3):
        step["raw"] = grammar.mutate(step["raw"])
    return [step | {"broker": rng.randint(0, 1), "timeout_s": 0.4}]


def _frames(grammar: Grammar) -> list[Step]:
    """HTTP/2 at the gRPC port: calls that are damaged, and frames in any order."""
    rng = grammar.rng
    paths = [*(name.encode() for name in METHODS), b"/x"]
    body = b"\0" + grammar.content()[: 1 << 14]
    path = rng.choice(paths)
    raw = rng.choice((request(path, body), preface() + headers_frame(path), sequence(rng, paths)))
    if grammar.chance(0.6):
        raw = grammar.mutate(raw)
    if grammar.chance(0.1):
        raw = raw[: rng.randrange(len(raw) + 1)]
    step = {"do": "tcp", "raw": raw, "timeout_s": 0.2, "broker": rng.randint(0, 1)}
    step["end"] = rng.choice(("close", "close", "cancel", "hold"))
    if grammar.chance(0.3):
        step["cuts"] = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randint(1, 8)))
    return [step]


def _tokens(grammar: Grammar) -> list[Step]:
    """Claims with odd keys and values."""
    labels = [{"name": "name", "value": "mine/", "prefix": True}]
    claims: dict[str, Any] = {
        "cap": 31,
        "exp": "$EXP",
        "iat": 1,
        "sel": {"include": {"labels": labels}},
    }
    for _ in range(grammar.rng.randint(1, 3)):
        holder = (
            grammar.rng.choice((claims, claims["sel"], labels[0]))
            if isinstance(claims.get("sel"), dict)
            else claims
        )
        key = grammar.rng.choice(
            (*holder, "Cap", "CAP", "nbf", "aud", "prefiX", "extra", "namE", grammar.text(1))
        )
        holder[key] = grammar.rng.choice(
            (grammar.number(), None, True, [], {}, 1.5e300, grammar.text(2), "mine/")
        )
    text = json.dumps(claims, ensure_ascii=True).replace('"$EXP"', "$EXP")
    who = {"token": "claims", "claims": text}
    return [
        rpc("Read", pb.ReadRequest(journal="mine/spy"), **who),
        {"do": "parse", "target": "claims", "text": text.replace("$EXP", "1").encode()},
    ]


def _templates(grammar: Grammar) -> list[Step]:
    """A template, from Apply to the name of a fragment."""
    template = grammar.template()
    journal = f"fuzz/template-{grammar.rng.randint(0, 3)}"
    return [
        {"do": "parse", "target": "template", "text": template.encode(errors="replace")},
        apply(spec(journal, template=template)),
        append(journal, b"row\n", timeout_s=0.5),
        rpc("/gazette_platform.Admin/Flush", pb.ReadRequest(journal=journal), timeout_s=0.3),
    ]


def _specs(grammar: Grammar) -> list[Step]:
    """Specs that may be applied, and their use."""
    journal = f"fuzz/spec-{grammar.rng.randint(0, 5)}"
    wanted = spec(journal, grammar.store())
    other: Any = grammar.fill(pb.JournalSpec(), density=0.2)
    for field, value in other.ListFields():
        if field.name in {"flags", "max_append_rate", "suspend", "labels", "replication"}:
            wanted.ClearField(field.name)
            if field.message_type is None:
                setattr(wanted, field.name, value)
            else:
                getattr(wanted, field.name).CopyFrom(value)
    if grammar.chance(0.3):
        wanted.fragment.MergeFrom(other.fragment)
    uses = [append(journal, b"row\n", timeout_s=0.5), rpc("Read", pb.ReadRequest(journal=journal))]
    return [apply(wanted), *uses]


def _keys(grammar: Grammar) -> list[Step]:
    """Keys and values that no broker wrote. None is a member's, since a cluster may have those."""
    parts = [
        grammar.text(2).encode(errors="replace").decode() for _ in range(grammar.rng.randint(1, 4))
    ]
    good = spec(f"fuzz/poked-{grammar.rng.randint(0, 3)}")
    item = f"/items/{good.name}"
    puts = grammar.rng.choice((
        [[item, grammar.mutate(good.SerializeToString())]],
        [["/items/" + "#".join(parts), good.SerializeToString()]],
        [["/members/" + "#".join(parts), grammar.rng.randbytes(9)]],
        [["/assign/" + "#".join(parts), b""]],
        [[f"/assign/{grammar.rng.choice(JOURNALS)}#a#broker-1#{grammar.number()}", grammar.rng.randbytes(3)]],
        [["/" + "/".join(parts), grammar.rng.randbytes(20)]],
    ))  # fmt: skip
    return [
        {"do": "etcd", "puts": puts},
        {"do": "wait", "seconds": 0.15},
        rpc("Read", pb.ReadRequest(journal="fuzz/a")),
    ]


def _files(grammar: Grammar) -> list[Step]:
    """Files in the store of a journal."""
    rng = grammar.rng
    begin, length = rng.choice((0, 10, 1 << 40, (1 << 63) - 100)), rng.choice((0, 1, 9, 1 << 30))
    name = f"{begin:016x}-{begin + length:016x}-{rng.randbytes(20).hex()}"
    names = (name, grammar.mutate(name.encode()).decode(errors="replace"), grammar.text(2))
    path = f"fuzz/c/{rng.choice(('', 'a=b/', 'x/y/', '../c/'))}{rng.choice(names)}{rng.choice(('.gz', '.sz', '.zst', '.raw', '', '.x'))}"
    planted = {
        "do": "files",
        "files": [[path.replace("\0", "").replace("//", "/"), grammar.mutate(rng.randbytes(50))]],
    }
    return [
        planted,
        rpc("Read", pb.ReadRequest(journal="fuzz/c", offset=begin)),
        rpc("ListFragments", pb.FragmentsRequest(journal="fuzz/c")),
    ]


def _parsers(grammar: Grammar) -> list[Step]:
    """Texts for parsers in this process, several at once since they cost little."""
    origins = _texts()
    steps = []
    for _ in range(_PARSES):
        target = grammar.rng.choice(PARSERS)
        known = origins.get(target, [b""])
        text = grammar.mutate(grammar.rng.choice(known))[: 1 << 16]
        if target == "template" and grammar.chance(0.6):
            text = grammar.template().encode(errors="replace")
        elif grammar.chance(0.1):
            text = grammar.text(6).encode(errors="replace")
        steps.append({"do": "parse", "target": target, "text": text})
    return steps


_SAMPLES = {
    "tree": [b"name: a/\nchildren:\n- name: a/b\n  replication: 2\n  labels: [{name: aa, value: b}]\n  fragment: {length: 1024, compression_codec: GZIP, stores: ['file:///'], refresh_interval: 1m}\n", b"&a {name: x, <<: *a}"],
    "table": [b"name: a.b\nselector: name:prefix=x/\nformat: json\nfresh_within: 1h\ncolumns:\n- {name: x, type: 'struct<a:array<int>,b:map<string,decimal(3,1)>>'}\npartitions: [{name: d, type: date, as: e}]\n"],
    "selector": [b"a in (x, y), !bb, cc = d, name:prefix = fuzz/, ee notin (f), gg != h"],
    "duration": [b"1h2m3.5s", b"-1.5h", b"100ms1us2ns"],
    "fragment": [b"a=b/0000000000000000-0000000000000006-8843d7f92416211de9ebb963ff4ce28125932878.sz"],
    "store": [b"s3://bucket/a/?profile=x&endpoint=y", b"file:///a/?find=x&replace=y"],
    "key": [b"/assign/a/b#zone#suffix#1", b"/members/a#b", b"/items/a"],
    "layout": [b"a/b={b}/c={c}"],
    "query": [b"123", b"-1"],
    "path": [b"/a/b%20c"],
    "token": [b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJjYXAiOjJ9.c2lnbmF0dXJl"],
}  # fmt: skip
_texts_cache: dict[str, list[bytes]] = {}


def _texts() -> dict[str, list[bytes]]:
    """Samples by target, with those of the corpus."""
    if not _texts_cache:
        _texts_cache.update({key: list(value) * 3 for key, value in _SAMPLES.items()})
        for case in corpus():
            for step in case.steps:
                if step["do"] == "parse" and len(step["text"]) < 1 << 16:
                    _texts_cache.setdefault(step["target"], []).append(step["text"])
    return _texts_cache


KINDS: dict[str, Callable[[Grammar], list[Step]]] = {
    "rpc": _calls, "http": _requests, "http2": _frames, "token": _tokens, "template": _templates,
    "spec": _specs, "key": _keys, "file": _files, "parser": _parsers,
}  # fmt: skip
"""Makers of steps by kind of input."""

_WEIGHTS = {"rpc": 10, "http": 5, "parser": 3, "http2": 2, "spec": 2}
