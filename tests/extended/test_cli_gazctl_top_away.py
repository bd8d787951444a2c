"""`gazctl journals top` where a store cannot be listed: its readers wait half a minute for that."""

from __future__ import annotations

import time

import orjson
import pytest

from gazette_platform.cli.gazctl import main

pytestmark = pytest.mark.etcd

SPEC = """
name: {name}/
replication: 1
fragment:
  length: 1048576
  compression_codec: NONE
  stores: [{store}]
  refresh_interval: 1s
children:
- name: {name}/one
"""


def test_top_shows_other_journals_if_a_store_is_away(broker, monkeypatch, capfdbinary, tmp_path):
    """Each measurement waited for it, too."""
    monkeypatch.setenv("BROKER_ADDRESS", broker.address)

    def gazctl(*args):
        code = main(["journals", *args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    specs = tmp_path / "specs.yaml"
    for name, store in (("top", "file:///"), ("away", "hdfs://127.0.0.1:1/a/")):
        specs.write_text(SPEC.format(name=name, store=store))
        assert gazctl("apply", "--specs", str(specs))[0] == 0
    began_s = time.monotonic()
    code, out, err = gazctl("top", "--once", "-o", "json", "-d", "200ms")
    assert time.monotonic() - began_s < 50, "it took 138 s"
    assert code == 0, err
    rows = {each["name"]: each for each in orjson.loads(out)["journals"]}
    assert "its stores are not listed yet" in rows["away/one"]["error"]
    assert rows["top/one"]["error"] is None
    code, out, err = gazctl("describe", "away/one")
    assert code == 1
    assert "its stores are not listed yet" in err
