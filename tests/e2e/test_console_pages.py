"""The console in a headless Chromium: what each page shows, by keyboard, in the dark, with many journals."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from journal_specs import journal_spec

from examples.word_count.application import WordCount
from gazette_platform import Client, ClientConfig
from gazette_platform.client import AsyncClient
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec, JournalChange
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.labels import LabelSelector
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.etcd,
    pytest.mark.browser,
    pytest.mark.timeout(600),
]

JOURNALS, FIRST_ROWS_MS = 10_000, 1000
CHANGES = 60  # of a transaction of etcd
ORDERS = "shop/orders"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
MANY = "load/"
KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()
WORD_COUNT = Path(__file__).parents[2] / "examples" / "word_count"
TABLE = """\
name: raw.words
selector: name:prefix=examples/
format: json
columns:
  - {name: word, type: string}
"""


def spec(name, replication=1, flush_s=0):
    return journal_spec(
        name,
        replication,
        length=1 << 24,
        codec=CompressionCodec.GZIP,
        refresh_s=3600,
        flush_s=flush_s,
        labels={"team": name.partition("/")[0]},
    )


def order(number):
    value = {"id": number, "customer": f"c-{number % 7}", "total": 12.5 * number, "items": [1, {}]}
    return json.dumps(value).encode() + b"\n"


@pytest.fixture(scope="module")
def server(etcd_server, tmp_path_factory):
    """A broker with many journals. Two have content."""
    folder = tmp_path_factory.mktemp("console")
    flags = (f"--broker.limit={2 * JOURNALS}",)
    # The lease is long: to create so many journals is work for seconds.
    with BrokerServer(
        folder,
        etcd=etcd_server.endpoint,
        prefix="/console",
        flags=flags,
        zone="zone-a",
        lease_s=20.0,
    ) as server:
        with Client(ClientConfig(address=server.address)) as client:
            names = [f"{MANY}region={n % 10}/part={n:05}" for n in range(JOURNALS)]
            names += [ORDERS, "shop/notes", "flights/origin=EWR/part=000"]
            for at in range(0, len(names), CHANGES):
                client.apply([JournalChange(spec(name)) for name in names[at : at + CHANGES]])
            client.append(ORDERS, b"".join(order(n) for n in range(400)))
            client.flush(f"name={ORDERS}")
            client.append(ORDERS, b"".join(order(n) for n in range(400, 420)))
            client.append("shop/notes", HOSTILE.encode() + b'\n{"big": 9223372036854775807}\n')
        yield server


@pytest.fixture(scope="module")
def base(server):
    return f"http://{server.http_address.removeprefix('http://')}/console/"


@pytest.fixture
async def browser():
    """A browser whose pages must cause no error, and name all that one can use."""
    # The certificates of these tests are of an authority that Chromium does not know.
    async with Browser(find_chromium(), "--ignore-certificate-errors") as browser:
        await browser.watch_errors()
        yield browser
        assert await browser.unnamed() == []
        assert browser.errors == []


async def picture(browser, name, height=760):
    """Take a picture for the documentation, if pictures are asked for."""
    folder = os.environ.get("GAZETTE_SCREENSHOTS")
    if folder:
        await browser.screenshot(Path(folder) / f"console-{name}.png", height=height)


async def fits_a_telephone(browser):
    """Only tables scroll sideways there."""
    await browser.resize(390, 800)
    await until(browser, "innerWidth === 390")
    assert await browser.evaluate("document.documentElement.scrollWidth") == 390
    assert (
        await browser.evaluate(
            "(m => m.scrollWidth - m.clientWidth)(document.querySelector('main'))"
        )
        == 0
    )
    await browser.resize(1400, 1000)


async def until(browser, expression):
    await eventually(lambda: browser.evaluate(expression), timeout_s=30, poll_s=0.1)


async def test_many_journals_show_first_rows_at_once(browser, base):
    """Of the time, from the navigation to the first row that is painted."""
    await browser.open(f"{base}?")
    await browser.wait_for(f"{JOURNALS + 3:,} journals", "region=0/")
    rows = "document.querySelectorAll('.grid .body .row').length"
    assert await browser.evaluate(rows) < 60, "rows out of view exist"
    first_ms = await browser.evaluate(
        "new Promise(go => new PerformanceObserver(list => go(list.getEntries()[0].startTime))"
        ".observe({type: 'mark', name: 'first-rows', buffered: true}))"
    )
    print(f"first rows of {JOURNALS} journals after {first_ms:.0f} ms")
    assert first_ms < patient(FIRST_ROWS_MS)


async def test_journals_are_a_tree_with_their_states(browser, base):
    await browser.open(base)
    await browser.wait_for("orders", "zone-a#test-broker", "ok", "B")
    text = await browser.text()
    assert "part=00000" not in text
    await fits_a_telephone(browser)
    await browser.click("▸region=3/ 1,000")
    await browser.wait_for("part=00003", "part=00013")
    await browser.evaluate("document.querySelector('.grid').scrollTop = 14000")
    await browser.wait_for("part=04993")
    await browser.evaluate("document.querySelector('.grid').scrollTop = 0")
    await picture(browser, "journals")


async def test_journals_are_found_by_name_and_selector(browser, base):
    await browser.open(base)
    await browser.wait_for("10,003 journals")
    await browser.evaluate("document.querySelector('[aria-label=\"Filter by name\"]').focus()")
    await browser.type("PART=0123")
    await browser.wait_for("10 of 10,003 journals", "part=01234")
    await browser.open(f"{base}#/journals?selector=team%3Dshop")
    await browser.wait_for("2 journals", "orders", "notes")
    assert "region=" not in await browser.text()


async def test_journals_are_used_by_keyboard(browser, base):
    await browser.open(base)
    await browser.wait_for("10,003 journals")
    await browser.evaluate("document.querySelector('[tabindex=\"0\"].row').focus()")
    row = "document.activeElement.innerText.split('\\n')[0]"
    for key, shown in (
        ("End", "orders"),
        ("ArrowUp", "notes"),
        ("ArrowLeft", "▾shop/ 2"),
        ("ArrowLeft", "▸shop/ 2"),
        ("ArrowRight", "▾shop/ 2"),
        ("ArrowDown", "notes"),
    ):
        await browser.press(key)
        await until(browser, f"{row} === {json.dumps(shown)}")
    await browser.press("Enter")
    await browser.wait_for("Messages", "Fragments", "Write head")
    assert await browser.evaluate("location.hash") == "#/journal?name=shop%2Fnotes"


async def test_messages_are_followed_and_jumped_to(browser, base, server):
    await browser.open(f"{base}#/journal?name=shop%2Forders")
    await browser.wait_for('"id": 419', '"customer": "c-6"', "At offset")
    assert '"id": 0,' not in await browser.text()
    with Client(ClientConfig(address=server.address)) as client:
        client.append(ORDERS, order(420))
    await browser.wait_for('"id": 420')
    await picture(browser, "journal", height=900)
    await browser.evaluate("document.querySelector('[name=place]').focus()")
    await browser.type("0")
    await browser.press("Enter")
    await browser.wait_for('"id": 0,')
    await browser.evaluate("document.querySelector('[name=place]').value = '2h'")
    await browser.click("Jump")
    await browser.wait_for('"id": 420')
    await browser.click("Pause")
    await browser.wait_for("Paused", "Go on")
    shown = "document.querySelectorAll('.tail article').length"
    assert await browser.evaluate(shown) <= 500


async def test_content_is_never_markup(browser, base):
    await browser.open(f"{base}#/journal?name=shop%2Fnotes")
    await browser.wait_for(HOSTILE, '"big": 9223372036854775807')
    assert await browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in await browser.evaluate("document.title")
    name = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    await browser.open(f"{base}#/journal?name={name}")
    await browser.wait_for("<img src=x onerror=alert(1)>", "not a valid token")
    await until(browser, "document.querySelectorAll('main img').length === 0")
    # Chromium logs refusals that the page shows.
    browser.errors[:] = [one for one in browser.errors if "Failed to load resource" not in one]


async def test_fragments_and_spec_of_a_journal(browser, base):
    await browser.open(f"{base}#/journal?name=shop%2Forders")
    await browser.wait_for("Messages")
    await browser.evaluate("document.querySelector('[role=tab][aria-selected=true]').focus()")
    await browser.press("ArrowRight")
    await browser.wait_for("GZIP", "in spools only", "file:///")
    await fits_a_telephone(browser)
    await browser.press("ArrowRight")
    await browser.wait_for("compression_codec: GZIP", "zone-a#test-broker (primary)")
    await browser.click("Messages")
    await browser.wait_for("At offset")
    await fits_a_telephone(browser)


async def test_pages_are_dark_where_the_reader_prefers_that(browser, base):
    colours = (
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    await browser.open(base)
    await browser.wait_for("10,003 journals")
    await browser.prefer("light")
    light = await browser.evaluate(colours)
    await browser.prefer("dark")
    dark = await browser.evaluate(colours)
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(20, 23, 27)"
    assert light[1] != dark[1]


async def test_texts_are_formatted(browser, base):
    await browser.open(base)
    await browser.wait_for("Journals")
    cases = {
        "f.bytes(1536)": "1.5 KiB",
        "f.bytes(null)": "",
        "f.duration(7200)": "2 h",
        "f.instant(0)": "",
        "f.instant(1700000000)": "2023-11-14T22:13:20Z",
        "f.parseTime('2h', 1e13)": 10**10 - 7200,
        "f.parseTime('2023-11-14T22:13:20Z')": 1700000000,
        "String(f.parseTime('soon'))": "NaN",
        "f.prettyJson('{broken')": None,
        """f.prettyJson('{"a": [1.10, {}], "b:,": "x\\\\"{"}').map(p => p[1]).join('')""": (
            '{\n  "a": [\n    1.10,\n    {}\n  ],\n  "b:,": "x\\"{"\n}'
        ),
        "f.treeRows([{name: 'a/b/c'}, {name: 'a/b/d'}, {name: 'e'}], () => true)"
        ".map(r => r.depth + r.label)": ["0a/b/", "1c", "1d", "0e"],
        "(p => [p.feed('id: 4\\nda'), p.feed('ta: x\\ndata: y\\n\\n:\\n\\n')])(new f.EventParser())": [
            [],
            [{"id": "4", "event": "message", "data": "x\ny"}],
        ],
    }
    for expression, expected in cases.items():
        found = await browser.evaluate(
            f"import('/console/static/format.js').then(f => {expression})"
        )
        assert found == expected, expression


@pytest.fixture
async def watched(local_brokers, etcd_server, etcd_prefix, tmp_path, monkeypatch):
    """The console of a broker that knows a consumer and a lake: its address, and the consumers."""
    first = await local_brokers.start(zone="zone-a", id="broker-one")
    async with (
        AsyncClient(ClientConfig(address=first.endpoint)) as client,
        LocalConsumers(
            tmp_path / "consumers",
            etcd=etcd_server.endpoint,
            prefix=f"{etcd_prefix}-group",
            client=client,
        ) as consumers,
    ):
        await client.apply(parse_journal_tree((WORD_COUNT / "journals.yaml").read_text()))
        process = await consumers.start(WordCount(2))
        changes = parse_shard_changes((WORD_COUNT / "shards.yaml").read_text())
        specs = [replace(change.spec, hint_prefix=f"{etcd_prefix}-hints") for change in changes]
        await consumers.create_shards(*specs)
        tables = tmp_path / "tables"
        tables.mkdir()
        (tables / "raw.yaml").write_text(TABLE)
        monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
        monkeypatch.setenv("GAZETTE_TABLES", str(tables))
        monkeypatch.setenv("GAZETTE_DAGSTER_URI", "http://127.0.0.1:3000")
        address = f"http://127.0.0.1:{process.port}"
        second = await local_brokers.start(
            zone="zone-b", id="broker-two", console_consumer=(address,)
        )
        yield f"http://127.0.0.1:{second.http_port}/console/", consumers


async def test_brokers_shards_and_tables_are_shown(browser, watched):
    base, consumers = watched
    await browser.open(f"{base}#/brokers")
    await browser.wait_for(
        "zone-a#broker-one", "zone-b#broker-two (serves this page)", "Lease", "Appended", "CPU"
    )
    await browser.wait_for("MiB", "s left", "0 B/s")
    cells = "[...document.querySelectorAll('main tbody tr')].map(r => r.cells[8].innerText)"
    assert all("MiB" in memory for memory in await browser.evaluate(cells))
    await fits_a_telephone(browser)
    await browser.open(f"{base}#/shards")
    await browser.wait_for("shard-000", "shard-003", "PRIMARY", "0 B", "none (wanted: 1)")
    await picture(browser, "shards", height=420)
    await browser.evaluate("document.querySelector('[aria-label=\"Unassign shard-000\"]').focus()")
    await browser.press("Enter")
    await browser.wait_for("Unassign shard-000? Its primary stops")
    await browser.evaluate("document.querySelector('dialog button[value=yes]').click()")
    await browser.wait_for("shard-000 is assigned again")
    await consumers.wait_primary("shard-000")
    await browser.open(f"{base}#/tables")
    await browser.wait_for("raw.words", "json", "Dagster")
    await fits_a_telephone(browser)
    assert await browser.evaluate("[...document.querySelectorAll('main a')].map(a => a.href)") == [
        "http://127.0.0.1:3000/",
        "http://127.0.0.1:3000/assets/raw/words",
    ]


async def test_a_tail_goes_on_at_another_broker(browser, local_brokers):
    """At the same address, as behind a proxy."""
    first = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.apply([JournalChange(spec(ORDERS))])
        await client.append(ORDERS, order(1))
    await browser.open(f"http://127.0.0.1:{first.http_port}/console/#/journal?name=shop%2Forders")
    await browser.wait_for('"id": 1', "At offset")
    await first.drain()
    await browser.wait_for("This broker is leaving. Connecting again in")
    await browser.wait_for("The broker does not answer. Connecting again in")
    second = await local_brokers.start(http_port=first.http_port)
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        await client.append(ORDERS, order(2))
    await browser.wait_for('"id": 2', "At offset")
    assert await browser.evaluate("document.querySelectorAll('.tail article').length") == 2
    await browser.open("about:blank")
    browser.errors[:] = [one for one in browser.errors if "Failed to load resource" not in one]


async def test_a_token_is_asked_for_and_used(browser, local_brokers, tmp_path):
    """Over TLS, as where tokens are worth something."""
    authority = CertificateAuthority(tmp_path)
    cert, key = authority.issue("broker")
    broker = await local_brokers.start(
        auth_keys=KEY, server_cert_file=cert, server_cert_key_file=key, peer_ca_file=authority.ca
    )
    config = ClientConfig(address=broker.endpoint, auth_keys=KEY, trusted_ca_file=str(authority.ca))
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec(name)) for name in ("ours/one", "theirs/two")])
        await client.append("ours/one", order(7))
    base = f"https://127.0.0.1:{broker.http_port}/console/"
    await browser.open(base)
    await browser.wait_for("missing or empty Authorization token", "Give a token")
    claims = Claims(Capability.LIST | Capability.READ, LabelSelector.parse("name:prefix=ours/"))
    token = KeyRing(KEY).sign(claims, now=SystemClock().now().timestamp(), lifetime_s=600)
    await browser.click("Give a token")
    await browser.wait_for("Bearer token")
    await browser.type(token)
    await browser.press("Enter")
    await browser.wait_for("1 journal", "ours/")
    assert "theirs" not in await browser.text()
    await browser.open(f"{base}#/journal?name=ours%2Fone")
    await browser.wait_for('"id": 7', "At offset")
    await browser.open(f"{base}#/brokers")
    await browser.wait_for("authorization is missing required APPLY capability")
    browser.errors[:] = [one for one in browser.errors if "Failed to load resource" not in one]
