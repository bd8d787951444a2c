"""The program of an application, and options of the application's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gazette_platform.app import Application, Option, main
from gazette_platform.errors import ValidationError


class Fluxes(Application[Any, Any]):
    """Measures fluxes."""

    options = (
        Option("flux.N", int, 4, "Samples of a mean."),
        Option("flux.window", float, 90.0, "Age of a sample."),
        Option("flux.folder", Path, None, "Where it writes."),
        Option("flux.is-loud", bool, False, "Whether it reports."),
    )

    def __init__(self):
        self.values = {}

    def configure(self, values):
        if not 1 <= values["flux.N"] <= 9:
            raise ValidationError("expected 1 to 9", path="flux.N")
        self.values = dict(values)

    def new_store(self, shard, recorder):
        raise AssertionError("the tests never open it")

    def consume(self, txn, envelope):
        raise AssertionError("the tests never let it consume")


@pytest.fixture
def fluxes(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    application = Fluxes()

    def run(*args):
        code = main(application, ["print-config", *args])
        out, err = capsys.readouterr()
        return code, out, err, application.values

    return run


def test_an_application_has_its_options_with_their_defaults(fluxes):
    code, out, _, values = fluxes()
    assert code == 0
    assert values == {
        "flux.N": 4,
        "flux.window": 90.0,
        "flux.folder": None,
        "flux.is-loud": False,
    }
    assert out.startswith("[Flux]\nN = 4\nwindow = 1m30s\nis-loud = false\n\n[Consumer]\n")


def test_options_of_an_application_come_from_flags_the_file_and_variables(
    fluxes, monkeypatch, tmp_path
):
    monkeypatch.setenv("FLUX_N", "5")
    monkeypatch.setenv("FLUX_WINDOW", "1s")
    monkeypatch.setenv("FLUX_FOLDER", "of/variable")
    Path("gazette.ini").write_text("[Flux]\nn = 6\nwindow = 2s\n")
    code, _, _, values = fluxes("--flux.N", "7", "--flux.is-loud")
    assert code == 0
    assert values == {
        "flux.N": 7,
        "flux.window": 2.0,
        "flux.folder": Path("of/variable"),
        "flux.is-loud": True,
    }


def test_what_an_application_refuses_ends_its_program(fluxes):
    code, out, err, _ = fluxes("--flux.N", "10")
    assert code == 1
    assert not out
    assert "flux.N: expected 1 to 9" in err


def test_help_shows_the_options_of_an_application(capsys):
    assert main(Fluxes(), ["serve", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--flux.N" in out
    assert "Samples of a mean." in out


@pytest.mark.parametrize("name", ["N", "flux.", ".N", "consumer.limit", "Etcd.n", "log.N"])
def test_an_option_needs_a_group_of_its_own(name):
    with pytest.raises(ValidationError, match="expected a group of your own"):
        Option(name, int, 4, "Samples.")


def test_an_option_needs_a_kind_that_can_be_written():
    with pytest.raises(ValidationError, match="no option has values of dict"):
        Option("flux.N", dict, None, "Samples.")
