"""A Trino as others run it: TLS by an authority of their own, logins, and catalogs of other names."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from dagster import DagsterInstance, materialize
from lake_bench import FragmentFiles
from lake_servers import running

from gazette_platform.assets import rollup_asset
from gazette_platform.errors import LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import Registrar, StoreRoots, ensure_views, parse_table_spec
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.engines.doctor import look_at_trino
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession, sql_folder
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.rollups import load_rollup_specs
from gazette_platform.lake.rollups.engines import TrinoEngine
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.lake.rollups.table import maintain
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools
from gazette_platform.platform.component import Component, choose_ports
from gazette_platform.platform.servers import write_configuration
from gazette_platform.resources import LakeResource, MetastoreResource, TrinoResource
from gazette_platform.testing.etcd import CertificateAuthority

# The first test pays for the start of the servers.
pytestmark = [pytest.mark.hive, pytest.mark.trino, pytest.mark.timeout(400)]

OTHER = TrinoCatalogs(hive="raw-lake", iceberg="lake")
FLIGHTS = """
name: flights.flights
selector: name:prefix=flights/
format: json
columns:
  - {name: dest, type: string}
  - {name: year, type: int}
  - {name: month, type: int}
  - {name: dep_time, type: int}
  - {name: dep_delay, type: double}
  - {name: arr_delay, type: double}
"""
SECURE = """
http-server.https.enabled=true
http-server.https.port={port}
http-server.https.keystore.path={keys}
http-server.https.truststore.path={ca}
http-server.authentication.type=JWT,CERTIFICATE
http-server.authentication.jwt.key-file={jwt_key}
http-server.authentication.certificate.user-mapping.pattern=.*CN=([^,]+).*
internal-communication.shared-secret={shared}
"""


class OwnTrino:
    """A Trino with TLS, which lets in whoever has a token or a certificate of its authority."""

    def __init__(self, folder, settings):
        self.settings = settings
        self._key = secrets.token_bytes(32)
        ports = choose_ports(["http", "https"])
        self.http = f"http://127.0.0.1:{ports['http']}"
        self.https = f"https://localhost:{ports['https']}"
        authority = CertificateAuthority(folder)
        self.ca = str(authority.ca)
        self.client = authority.issue("ada")
        server = authority.issue("server")
        keys = folder / "server-both.pem"
        keys.write_text(server.key.read_text() + server.cert.read_text())
        (folder / "jwt.key").write_bytes(base64.b64encode(self._key))
        (folder / "data").mkdir()
        etc = folder / "etc"
        write_configuration(
            etc,
            host="127.0.0.1",
            port=ports["http"],
            data_dir=folder / "data",
            metastore=settings.metastore.removeprefix("thrift://"),
        )
        with (etc / "config.properties").open("a") as config:
            config.write(
                SECURE.format(
                    port=ports["https"],
                    keys=keys,
                    ca=authority.ca,
                    jwt_key=folder / "jwt.key",
                    shared=secrets.token_hex(16),
                )
            )
        names = {"hive": OTHER.hive, "iceberg": OTHER.iceberg}
        for name, other in names.items():
            path = etc / "catalog" / f"{name}.properties"
            text = path.read_text().replace(
                "iceberg-catalog-name=iceberg", "iceberg-catalog-name=lake"
            )
            text = text.replace("hive-catalog-name=hive", "hive-catalog-name=raw-lake")
            path.with_name(f"{other}.properties").write_text(text)
            path.unlink()
        self.component = Component(
            name="own-trino",
            command=(
                str(tools.trino() / "bin" / "launcher"),
                "run",
                "--etc-dir",
                str(etc),
                "--data-dir",
                str(folder / "data"),
                "--jvm-dir",
                str(tools.java(25)),
            ),
            folder=folder,
            ready=self._answers,
            start_timeout_s=300.0,
            stop_timeout_s=30.0,
        )

    def token(self, *, lasts_s=600, key=b""):
        ends_at = SystemClock().now() + timedelta(seconds=lasts_s)
        return jwt.encode({"sub": "ada", "exp": ends_at}, key or self._key, algorithm="HS256")

    def login(self, **changes):
        return replace(TrinoLogin(user="ada", token=self.token(), ca_file=self.ca), **changes)

    def session(self, **changes):
        return TrinoSession(self.https, login=self.login(**changes), timeout_s=30)

    def _answers(self):
        try:
            return bool(
                self.session().query(
                    "SELECT count(*) FROM tpch.tiny.region, lake.information_schema.schemata"
                )
            )
        except LakeError:
            return False


@pytest.fixture(scope="module")
def own(tmp_path_factory, lake_settings):
    folder = tmp_path_factory.mktemp("own-trino")
    server = OwnTrino(folder, lake_settings)
    with running(server.component, folder / "trino.log"):
        yield server


@pytest.fixture
def flights(own, tmp_path):
    """A raw table of three flights, and its view, in which Trino is asked by the catalog's own name."""
    files = FragmentFiles(tmp_path / "fragments")
    line = '{{"dest": "LAX", "year": 2013, "month": 1, "dep_time": {0}, "dep_delay": {0}, "arr_delay": 1}}\n'
    content = "".join(line.format(n) for n in range(3)).encode()
    files.append("flights/origin=JFK/part=0", content, postfix="hour=05")
    metastore = MetastoreClient(own.settings.metastore)
    spec = parse_table_spec(FLIGHTS)
    report = Registrar(files, metastore, StoreRoots(files.roots)).tick(spec, {})
    with metastore.connect() as session:
        ensure_views(session, spec, report.definition, {}, catalog=OTHER.hive)
        yield report.definition
        for name in ("flights", "flights_exact"):
            session.drop_table("flights", name)


def test_logins_that_are_let_in(own, monkeypatch):
    cert, key = map(str, own.client)
    for login in (
        own.login(),
        TrinoLogin(user="ada", cert_file=cert, cert_key_file=key, ca_file=own.ca),
    ):
        session = TrinoSession(own.https, login=login)
        assert session.query("SELECT current_user") == [("ada",)]
    # What other programs trust does not count where an authority is named.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", cert)
    assert own.session().query("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token": ""}, "does not let 'ada' in .*GAZETTE_TRINO_PASSWORD, _TOKEN"),
        ({"token": "not.a.token"}, "does not let 'ada' in"),
        ({"ca_file": ""}, "cannot reach Trino .*GAZETTE_TRINO_CA_FILE"),
        ({"ca_file": "/no/such.pem"}, "cannot reach Trino .*/no/such.pem"),
    ],
)
def test_logins_that_are_not(own, changes, says):
    with pytest.raises(LakeError, match=f"(?s){says}"):
        own.session(**changes).query("SELECT 1")


def test_tokens_of_others_and_of_the_past_are_refused(own):
    for token in (own.token(lasts_s=-600), own.token(key=secrets.token_bytes(32))):
        with pytest.raises(LakeError, match="does not let 'ada' in"):
            own.session(token=token).query("SELECT 1")


def test_its_plain_port_says_that_it_wants_another(own):
    with pytest.raises(LakeError, match="want https://"):
        TrinoSession(own.http).query("SELECT 1")


def test_the_doctor_finds_the_catalogs_by_their_names(own, flights):
    with MetastoreClient(own.settings.metastore).connect() as session:
        well = list(look_at_trino(own.session(), session, [flights], catalogs=OTHER))
        ill = list(look_at_trino(own.session(), session, [flights]))
    assert [d for d in well if d.state == "error"] == []
    assert any("flights.flights: sees all 1 Hive partition(s)" in d.text for d in well)
    assert any("flights.flights can be read" in d.text for d in well)
    assert [(d.state, d.advice) for d in ill] == [
        ("error", "set GAZETTE_TRINO_CATALOG to its name"),
        ("warning", "set GAZETTE_TRINO_ICEBERG_CATALOG to its name"),
    ]
    assert "that is called raw-lake here" in ill[0].text


def test_view_and_rollup_go_by_the_names_of_the_catalogs(own, flights, tmp_path, monkeypatch):
    found, _ = load_rollup_specs(sql_folder() / "demo")
    route_by_month = found["rollups.route_by_month"]
    assert own.session().query('SELECT count(*) FROM "raw-lake".flights.flights_exact') == [(3,)]
    token = tmp_path / "token"
    token.write_text(own.token())
    for name, value in (("USER", "ada"), ("TOKEN_FILE", token), ("CA_FILE", own.ca)):
        monkeypatch.setenv(f"GAZETTE_TRINO_{name}", str(value))
    with DagsterInstance.ephemeral() as instance:
        result = materialize(
            [rollup_asset(route_by_month, catalog=OTHER.iceberg)],
            instance=instance,
            resources={
                "trino": TrinoResource(
                    uri=own.https, catalog=OTHER.hive, iceberg_catalog=OTHER.iceberg
                ),
                "metastore": MetastoreResource(uri=own.settings.metastore),
                "lake": LakeResource(
                    tables="",
                    warehouse=own.settings.warehouse,
                    table_url="http://sql/{catalog}.{schema}.{table}",
                ),
            },
        )
    assert result.success
    (event,) = result.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["table"].value == "http://sql/lake.rollups.route_by_month"
    rows = own.session().query("SELECT origin, dest, flights FROM lake.rollups.route_by_month")
    assert rows == [("JFK", "LAX", 3)]
    with MetastoreClient(own.settings.metastore).connect() as session:
        assert session.tables(STAGING_SCHEMA) == []
    tables = IcebergTables(MetastoreClient(own.settings.metastore), own.settings.warehouse)
    engine = TrinoEngine(own.session(), OTHER)
    done = maintain(
        tables,
        "trino",
        engine.execute,
        route_by_month,
        now_s=SystemClock().unix_s(),
        catalogs=OTHER,
    )
    assert done.files == 1
    own.session().query("DROP TABLE lake.rollups.route_by_month")
