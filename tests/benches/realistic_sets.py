"""Data sets of the shapes that people bring: made by a seed, written as their producers write them.

Each set has the content of a journal, and questions with an answer that DuckDB finds in the same content as a file.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SETS", "DataSet", "Question"]

_BEGIN: Final = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
# Python's, with blanks behind commas and colons; Go's, without; that of JavaScript's pretty printers' kin, with escapes.
_STYLES: Final[dict[str, dict[str, Any]]] = {
    "python": {},
    "go": {"separators": (",", ":"), "ensure_ascii": False},
    "java": {"separators": (", ", " : "), "ensure_ascii": True},
}


@final
@dataclass(frozen=True, slots=True)
class Question:
    """One question in four dialects. ``{}`` stands for the table, or for what reads the file."""

    of_file: str
    """Of DuckDB, to the lines of the file: each is in the column ``json``, or has the columns ``c1`` and so on."""
    duckdb: str
    spark: str
    trino: str


@final
@dataclass(frozen=True, slots=True)
class DataSet:
    """One set."""

    name: str
    content: bytes
    questions: tuple[Question, ...]
    types: dict[str, str]
    """Columns, and how the type that is to be inferred of each begins."""
    format: Literal["json", "csv"] = "json"
    texts: dict[str, str] = field(default_factory=dict)
    """Keys whose values of any kind are kept as text, by column. The set has the column ``n`` then."""

    @property
    def lines(self) -> list[bytes]:
        """Its records."""
        return self.content.splitlines()


def _written(records: Iterator[dict[str, Any]], style: str) -> bytes:
    return b"".join(json.dumps(each, **_STYLES[style]).encode() + b"\n" for each in records)


def _uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def _at(number: int) -> str:
    return (_BEGIN + timedelta(seconds=7 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")


# --------------------------------------------------------------------------- GitHub events


def _github(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        kind = chance.choice(["PushEvent", "WatchEvent", "IssuesEvent", "CreateEvent"])
        login = f"dev-{chance.randrange(40)}"
        payload: dict[str, Any] = {"action": "started"}
        if kind == "PushEvent":
            payload = {
                "push_id": 10_000_000_000 + number,
                "size": chance.randrange(1, 5),
                "ref": "refs/heads/main",
                "commits": [
                    {
                        "sha": f"{chance.getrandbits(160):040x}",
                        "author": {"email": f"{login}@example.com", "name": "Zoë \U0001f41d"},
                        "message": 'Fix "quoting"\n\nand a tab\t',
                        "distinct": True,
                    }
                    for _ in range(chance.randrange(1, 3))
                ],
            }
        elif kind == "IssuesEvent":
            payload = {
                "action": chance.choice(["opened", "closed"]),
                "issue": {
                    "number": number,
                    "labels": [{"id": 1, "name": "bug"}] if number % 3 else [],
                    "milestone": None,
                    "reactions": {"+1": chance.randrange(5), "-1": 0, "total_count": 3},
                },
            }
        elif kind == "CreateEvent":
            payload = {"ref": None, "ref_type": "repository", "description": None}
        yield {
            "id": str(20_000_000_000 + number),
            "type": kind,
            "actor": {"id": chance.randrange(10_000), "login": login, "gravatar_id": ""},
            "repo": {"id": chance.randrange(10_000), "name": f"acme/{login}"},
            "payload": payload,
            "public": True,
            "created_at": _at(number),
            **({"org": {"id": 7, "login": "acme"}} if number % 2 else {}),
        }


# --------------------------------------------------------------------------- Debezium


def _debezium(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for number in range(count):
        key = chance.randrange(1, 30)
        before = rows.get(key)
        if before is not None and chance.random() < 0.2:
            op, after = "d", None
            del rows[key]
        else:
            op = "c" if before is None else "u"
            after = {
                "id": key,
                "email": f"user{key}@example.com",
                "balance": round(chance.uniform(0, 1000), 2),
                "tags": chance.choice([None, [], ["a", "b"]]),
                "updated_at": 1_772_000_000_000_000 + number,
            }
            rows[key] = after
        yield {
            "before": before,
            "after": after,
            "source": {
                "version": "2.7.0.Final",
                "connector": "postgresql",
                "name": "shop",
                "ts_ms": 1_772_000_000_000 + number,
                "snapshot": "false",
                "db": "shop",
                "sequence": f'["{24_000_000 + number}","{24_000_100 + number}"]',
                "schema": "public",
                "table": "customers",
                "txId": 700 + number,
                "lsn": 24_000_100 + number,
                "xmin": None,
            },
            "transaction": None,
            "op": op,
            "ts_ms": 1_772_000_000_500 + number,
        }


# --------------------------------------------------------------------------- OpenTelemetry


def _value(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    match chance.randrange(5 if depth < 2 else 4):
        case 0:
            return {"stringValue": chance.choice(["GET /", "größer", "a/b", ""])}
        case 1:
            return {"intValue": str(chance.randrange(1000))}
        case 2:
            return {"boolValue": True}
        case 3:
            return {"doubleValue": chance.choice([0.5, 1e-7, 2])}
        case _:
            pairs = [{"key": "k", "value": _value(chance, depth + 1)}]
            return {"kvlistValue": {"values": pairs}}


def _otlp(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        records = [
            {
                "timeUnixNano": str(1_772_000_000_000_000_000 + number * 1000 + each),
                "severityNumber": chance.choice([9, 13, 17]),
                "severityText": chance.choice(["INFO", "WARN", "ERROR"]),
                "body": _value(chance),
                "attributes": [
                    {"key": key, "value": _value(chance)}
                    for key in ("http.method", "http.target")[: chance.randrange(3)]
                ],
                "traceId": f"{chance.getrandbits(128):032x}",
                "spanId": f"{chance.getrandbits(64):016x}",
            }
            for each in range(chance.randrange(1, 4))
        ]
        yield {
            "resourceLogs": [
                {
                    "resource": {
                        "attributes": [
                            {"key": "service.name", "value": {"stringValue": "checkout"}},
                            {"key": "process.pid", "value": {"intValue": str(number)}},
                        ]
                    },
                    "scopeLogs": [
                        {
                            "scope": {} if number % 2 else {"name": "log4j", "version": "2"},
                            "logRecords": records,
                        }
                    ],
                }
            ]
        }


# --------------------------------------------------------------------------- Kubernetes audit


def _audit(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        verb = chance.choice(["get", "list", "create", "patch"])
        found: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "RequestResponse",
            "auditID": _uuid(chance),
            "stage": "ResponseComplete",
            "requestURI": f"/api/v1/namespaces/default/pods?limit={number}",
            "verb": verb,
            "user": {
                "username": "system:serviceaccount:kube-system:deployer",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/pod-name": [f"deployer-{number % 3}"]},
            },
            "sourceIPs": ["10.0.0.7"],
            "objectRef": {"resource": "pods", "namespace": "default", "name": f"web-{number}"},
            "responseStatus": {"metadata": {}, "code": chance.choice([200, 201, 404])},
            "requestReceivedTimestamp": _at(number).replace("Z", ".123456Z"),
            "annotations": {
                "authorization.k8s.io/decision": "allow",
                "authorization.k8s.io/reason": "RBAC: allowed by ClusterRoleBinding",
            },
        }
        if verb in ("create", "patch"):
            found["requestObject"] = {
                "kind": "Pod",
                "metadata": {
                    "name": f"web-{number}",
                    "labels": {"app.kubernetes.io/name": "web", "tier": "front"},
                    "creationTimestamp": None,
                },
                "spec": {
                    "containers": [
                        {
                            "name": "web",
                            "image": "registry.example.com/web:1.2",
                            "resources": {"limits": {"cpu": "500m"}} if number % 2 else {},
                            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                            "env": [{"name": "A", "valueFrom": {"fieldRef": {"path": "x"}}}],
                        }
                    ],
                    "replicas": chance.choice([1, "25%"]),
                },
                "status": {},
            }
        yield found


# --------------------------------------------------------------------------- odd JSON


def _odd(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "n": number,
            "mixed": chance.choice([number, "text", None, [1, 2], {"a": [1.5, {"b": None}]}, True]),
            "item": {"name": "Stuhl", "preis": 19.99, "Größe": "XL"},
            "city": {"Osv": 1, "osv": number, "lon": 2},
            "half named": {"a b": {"deep": [1, {"c": "d"}]}, "c": 1},
            "empty": chance.choice([{}, [], ""]),
            "big": 2**70 + number,
            "exp": chance.choice([1e300, 5e-324, 0.1, 3]),
            "text": 'slash \\/ quote \\" \u00e4 \u2028 \U0001f600',
            "odd.key": number,
            "2nd": [[1], []],
        }


# --------------------------------------------------------------------------- CSV


def _csv(count: int, chance: random.Random) -> bytes:
    """Records of RFC 4180 without a header, as of a dump: texts in quotes, quotes doubled, LF."""
    rows = []
    for number in range(count):
        name = chance.choice(["Bob", "Zoë"])
        last = "" if number % 5 else '""'
        price = f"{chance.uniform(0, 99):.2f}"
        rows.append(f'{number},"Müller, ""{name}""",{price},{_at(number)},{last}')
    return "".join(f"{row}\n" for row in rows).encode()


# --------------------------------------------------------------------------- the sets


def _ask(of_file: str, of_table: str, spark: str = "", trino: str = "") -> Question:
    duckdb = f"SELECT {of_table}"
    return Question(
        f"SELECT {of_file}",
        duckdb,
        f"SELECT {spark}" if spark else duckdb,
        f"SELECT {trino}" if trino else duckdb,
    )


GITHUB: Final = _ask(
    "json->>'$.type', count(*), sum((json->>'$.payload.size')::BIGINT), "
    "sum((json->>'$.payload.issue.reactions.\"+1\"')::BIGINT) FROM {} GROUP BY 1 ORDER BY 1",
    "type, count(*), sum(payload.size), sum(payload.issue.reactions['+1']) FROM {} GROUP BY 1 ORDER BY 1",
    trino="type, count(*), sum(payload.size), sum(element_at(payload.issue.reactions, '+1')) FROM {} "
    "GROUP BY 1 ORDER BY 1",
)
DEBEZIUM: Final = _ask(
    "json->>'$.op', count(*), sum((json->>'$.after.id')::BIGINT), sum((json->>'$.before.id')::BIGINT), "
    "count(json->>'$.after.balance') FROM {} GROUP BY 1 ORDER BY 1",
    'op, count(*), sum("after".id), sum("before".id), count("after".balance) FROM {} GROUP BY 1 ORDER BY 1',
    spark="op, count(*), sum(`after`.id), sum(`before`.id), count(`after`.balance) FROM {} GROUP BY 1 ORDER BY 1",
)
_FILE_LOGS: Final = "$.resourceLogs[0].scopeLogs[0].logRecords"
OTLP: Final = _ask(
    f"count(*), sum(json_array_length(json->'{_FILE_LOGS}')), "
    f"count(json->>'{_FILE_LOGS}[0].body.stringValue') FROM {{}}",
    "count(*), sum(len(resourceLogs[1].scopeLogs[1].logRecords)), "
    "count(resourceLogs[1].scopeLogs[1].logRecords[1].body.stringValue) FROM {}",
    spark="count(*), sum(size(resourceLogs[0].scopeLogs[0].logRecords)), "
    "count(resourceLogs[0].scopeLogs[0].logRecords[0].body.stringValue) FROM {}",
    trino="count(*), sum(cardinality(resourcelogs[1].scopelogs[1].logrecords)), "
    "count(resourcelogs[1].scopelogs[1].logrecords[1].body.stringvalue) FROM {}",
)
AUDIT: Final = _ask(
    "json->>'$.verb', count(*), sum((json->>'$.responseStatus.code')::BIGINT), "
    "count(json->>'$.requestObject.spec.replicas') FROM {} GROUP BY 1 ORDER BY 1",
    "verb, count(*), sum(responseStatus.code), count(requestObject.spec.replicas) FROM {} GROUP BY 1 ORDER BY 1",
)
ODD: Final = _ask(
    "count(*), sum((json->>'$.n')::BIGINT), sum((json->>'$.\"odd.key\"')::BIGINT), "
    "sum((json->>'$.city.osv')::BIGINT), count(json->>'$.mixed') FROM {}",
    "count(*), sum(n), sum(odd_key), sum(city['osv']), count(mixed) FROM {}",
    spark="count(*), sum(n), sum(`odd.key`), sum(city['osv']), count(mixed) FROM {}",
)
CSV: Final = _ask(
    "count(*), sum(c1::BIGINT), count(DISTINCT c2), sum(c3::DECIMAL(10,2)) FROM {}",
    "count(*), sum(CAST(c1 AS BIGINT)), count(DISTINCT c2), sum(CAST(c3 AS DECIMAL(10,2))) FROM {}",
)


def _json_set(
    name: str,
    make: Callable[[int, random.Random], Iterator[dict[str, Any]]],
    style: str,
    question: Question,
    types: dict[str, str],
    texts: dict[str, str] | None = None,
) -> DataSet:
    content = _written(make(400, random.Random(name)), style)
    return DataSet(name, content, (question,), types, texts=texts or {})


SETS: Final[dict[str, DataSet]] = {
    each.name: each
    for each in (
        _json_set(
            "github",
            _github,
            "python",
            GITHUB,
            {"actor": "struct<", "public": "boolean", "payload": "struct<"},
        ),
        _json_set(
            "debezium",
            _debezium,
            "go",
            DEBEZIUM,
            {"before": "struct<", "after": "struct<", "ts_ms": "bigint"},
        ),
        _json_set("otlp", _otlp, "java", OTLP, {"resourceLogs": "array<struct<"}),
        _json_set(
            "audit",
            _audit,
            "go",
            AUDIT,
            {
                "user": "struct<",
                "annotations": "map<string,string>",
                "requestObject": "struct<",
            },
        ),
        _json_set(
            "odd",
            _odd,
            "python",
            ODD,
            {"n": "bigint", "mixed": "string", "item": "string", "city": "map<string,bigint>"},
            {"mixed": "mixed", "item": "item", "half_named": "half named", "empty": "empty"},
        ),
        DataSet("csv", _csv(400, random.Random("csv")), (CSV,), {"c1": "string"}, "csv"),
    )
}
