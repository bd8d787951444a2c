"""The benchmark of the Kafka gateway: a short run beside a real Kafka measures what the targets name."""

from __future__ import annotations

import json
import sys

from benchmarks import kafka
from benchmarks.targets import KAFKA_TARGETS


def test_a_short_run_measures_every_target_of_both_servers(tmp_path, monkeypatch, capsys):
    result = tmp_path / "kafka.json"
    arguments = ["--rounds=1", "--scale=0.02", f"--output={result}", f"--folder={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.kafka", *arguments])
    assert kafka.main() == 0, capsys.readouterr().err
    found = json.loads(result.read_text())
    figures = found["figures"]
    for target in KAFKA_TARGETS:
        name = target.name.removeprefix("ratio_")
        ratio = figures[f"ours_{name}"] / figures[f"kafka_{name}"]
        assert abs(figures[target.name] / ratio - 1) < 0.01
    assert found["versions"]["kafka"].startswith("4.")
    assert list(tmp_path.iterdir()) == [result]
