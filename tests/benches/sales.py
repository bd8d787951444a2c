"""What a shop of this session of the platform appended: data that several tests ask all engines about."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gazette_platform import Flags, build_uuid, clock_of
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

if TYPE_CHECKING:
    from gazette_platform import Client
    from gazette_platform.platform.layout import PlatformDir

__all__ = ["Sales", "json_lines"]

# In eu files are compressed, in us they are plain. Both close at the end of the minute, or when asked to.
JOURNALS = """
name: sales/
replication: 1
labels: [{name: content-type, value: application/x-ndjson}]
fragment:
  length: 67108864
  compression_codec: GZIP
  stores: ["file:///"]
  refresh_interval: 1s
  flush_interval: 1m
  path_postfix_template: 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'
children:
- {name: sales/fresh/region=eu}
- {name: sales/notes/region=eu, labels: [{name: content-type, value: text/csv}]}
- {name: sales/payments/region=eu}
- {name: sales/payments/region=us}
- {name: sales/picky/region=eu}
- {name: sales/purchases/region=eu}
- {name: sales/purchases/region=us, fragment: {compression_codec: NONE}}
- {name: sales/visits/region=eu}
"""
PARTITIONS = "partitions: [{name: date, type: date}, {name: hour, type: int}]\n"
SPECS = {
    "purchases": "comment: Orders as they came.\nowners: [team:sales]\nformat: json\ncolumns:\n"
    "  - {name: id, type: bigint, comment: number of the order}\n"
    "  - {name: customer, type: string}\n"
    "  - {name: amount, type: 'decimal(10,2)'}\n"
    "  - {name: ordered, type: date}\n",
    "notes": "format: csv\ncolumns: [{name: id, type: string}, {name: note, type: string}]\n",
    "fresh": "format: json\ncolumns: [{name: id, type: bigint}]\n",
    "picky": "format: json\ncolumns: [{name: id, type: bigint}, {name: word, type: string}]\n",
    "visits": "format: json\ncolumns: [{name: id, type: bigint}, {name: pages, type: bigint}]\n",
    # No run by itself: tests run it, and see what their runs report to Dagster.
    "payments": "format: json\ncolumns:\n"
    "  - {name: _meta, type: 'struct<uuid:string>'}\n"
    "  - {name: id, type: bigint}\n"
    "  - {name: amount, type: string}\n"
    "  - {name: paid, type: string}\n"
    "typed:\n"
    "  uuid: _meta.uuid\n"
    '  cron: "0 0 29 2 *"\n'
    "  partitions: [day(paid_at)]\n"
    "  columns:\n"
    "    - {name: id, type: int}\n"
    "    - {name: amount, type: 'decimal(10,2)'}\n"
    "    - {name: paid_at, from: paid, type: timestamptz}\n"
    "    - {name: region, type: string, segment: region}\n",
}
ROLLUPS = {
    "sales_by_customer": """-- name: rollups.sales_by_customer
-- sources: [sales.purchases]
-- slices: [region]
-- comment: Orders of each region and customer.
--
-- Grain: one row a region and customer.
SELECT region, customer, count(*) AS orders, sum(amount) AS total
FROM purchases
GROUP BY region, customer
""",
    "visits_by_region": """-- name: rollups.visits_by_region
-- sources: [sales.visits]
-- slices: [region]
SELECT region, count(*) AS visits, count(pages) AS counted, sum(pages) AS pages
FROM visits
GROUP BY region
""",
}
# By no clock: made by hand, or never.
_UNASKED = """-- name: rollups.sales_{}
-- sources: [sales.{}]
-- cron: "0 0 29 2 *"
--
SELECT {} AS n FROM {}
"""
ROLLUPS |= {
    "sales_words": _UNASKED.format("words", "picky", "count(*)", "picky"),
    "sales_broken": _UNASKED.format(
        "broken", "purchases", "max(CAST(customer AS bigint))", "purchases"
    ),
    "sales_unasked": _UNASKED.format("unasked", "purchases", "count(*)", "purchases"),
}
ORDERS = 1500
"""In each region, at first."""
NOTES = 300
FRESH = 40
VISITS = 999
"""That fit; one more does not."""
PRODUCER, OTHER = bytes.fromhex("070203040506"), bytes.fromhex("090203040506")
CLOCK = clock_of(1_760_000_000_000_000_000)


def json_lines(*records: dict[str, Any]) -> bytes:
    """Return records as lines of JSON."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


class Sales:
    """The data, and what is known of it. Specs and the rollup have to be written before the platform starts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.purchases: dict[str, list[dict[str, Any]]] = {"eu": [], "us": []}
        """By region; those that were appended."""

    @staticmethod
    def write_specs(layout: PlatformDir) -> None:
        """Put table specs and the rollup where the platform reads them."""
        layout.tables.mkdir(parents=True)
        for table, text in SPECS.items():
            head = f"name: sales.{table}\nselector: name:prefix=sales/{table}/\n"
            (layout.tables / f"sales.{table}.yaml").write_text(head + text + PARTITIONS)
        (layout.rollups / "trino").mkdir(parents=True)
        for name, text in ROLLUPS.items():
            (layout.rollups / "trino" / f"{name}.sql").write_text(text)

    def publish(self) -> None:
        """Create the journals, append everything, and have all but `fresh` stored at once."""
        self.client.apply(parse_journal_tree(JOURNALS))
        for region in self.purchases:
            for _ in range(3):
                self.order(region, ORDERS // 3)
        notes = b"".join(b'%d,"note %d, ""quoted"""\n' % (n, n) for n in range(NOTES))
        self.client.append("sales/notes/region=eu", notes)
        self.client.append(
            "sales/picky/region=eu",
            json_lines(
                {"id": 1, "word": "one"}, {"id": "two", "word": "two"}, {"id": 3, "word": "three"}
            )
            + b"no json\n",
        )
        for region in ("eu", "us"):
            self.client.append(f"sales/payments/region={region}", payments(region))
        self.visit(VISITS)
        self.visit(1, pages="many")
        for table in ("notes", "picky", "payments", "purchases", "visits"):
            self.client.flush(f"name:prefix=sales/{table}/")
        fresh = ({"id": n} for n in range(FRESH))
        self.client.append("sales/fresh/region=eu", json_lines(*fresh))

    def visit(self, count: int, pages: int | str = 2) -> None:
        """Append visits; their pages fit the spec if they are a number."""
        visits = ({"id": n, "pages": pages} for n in range(count))
        self.client.append("sales/visits/region=eu", json_lines(*visits))

    def order(self, region: str, count: int) -> None:
        """Append more orders to a region, by one call."""
        first = sum(map(len, self.purchases.values()))
        added = [order(n) for n in range(first, first + count)]
        self.client.append(f"sales/purchases/region={region}", json_lines(*added))
        self.purchases[region] += added

    def by_region(self) -> list[tuple[str, int, int, Decimal]]:
        """Return region, number, sum of ids and sum of amounts, as each engine has to say."""
        return [
            (
                region,
                len(orders),
                sum(each["id"] for each in orders),
                sum((amount_of(each) for each in orders), Decimal(0)),
            )
            for region, orders in self.purchases.items()
        ]

    def by_customer(self) -> list[tuple[str, str, int, Decimal]]:
        """Return what the rollup has to hold."""
        counts: Counter[tuple[str, str]] = Counter()
        totals: dict[tuple[str, str], Decimal] = {}
        for region, orders in self.purchases.items():
            for each in orders:
                key = region, each["customer"]
                counts[key] += 1
                totals[key] = totals.get(key, Decimal(0)) + amount_of(each)
        return sorted((*key, count, totals[key]) for key, count in counts.items())


def order(n: int) -> dict[str, Any]:
    """Return order number `n`."""
    day = f"2026-01-{1 + n % 28:02d}"
    return {"id": n, "customer": f"c{n % 7}", "amount": n % 100 * 1.25, "ordered": day, "more": n}


def amount_of(record: dict[str, Any]) -> Decimal:
    """Return the amount of an order, exactly."""
    return Decimal(str(record["amount"])).quantize(Decimal("0.01"))


def payment(n: int, flags: Flags, *, producer: bytes = PRODUCER, **more: Any) -> dict[str, Any]:
    """Return payment number `n`, whose UUID says `flags`."""
    uuid = str(build_uuid(producer, CLOCK + n * 160, flags))
    paid = f"2026-01-02T03:{n % 60:02d}:05+01:00"
    return {"_meta": {"uuid": uuid}, "id": n, "amount": f"{n}.50", "paid": paid} | more


COMMITTED = {"eu": [1, 2, 4, 5], "us": [11, 12]}
"""Numbers of payments that are rows, in each region."""
APPENDED = {"eu": 11, "us": 4}
"""Lines of each region."""
REASONS = {"eu": ["id: 'three' is no int", "is no JSON object"], "us": []}


def payments(region: str) -> bytes:
    """Return what was appended to a region: repeats, transactions that end and do not, and bad records."""
    alone, within, ack = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
    if region == "us":
        return json_lines(
            payment(11, alone),
            payment(12, within),
            payment(13, ack),
            payment(14, within),  # of a transaction that was never ended
        )
    again = json_lines(payment(2, alone))
    return (
        json_lines(payment(1, alone), payment(2, alone))
        + again
        + json_lines(payment(3, alone, id="three"))
        + again
        + b"no record\n"
        + json_lines(
            payment(4, within, producer=OTHER),
            payment(5, within, producer=OTHER),
            payment(4, within, producer=OTHER),
            payment(6, ack, producer=OTHER),
            payment(7, within, producer=OTHER),
        )
    )
