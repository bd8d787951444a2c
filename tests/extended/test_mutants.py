"""`make mutants`: no survivor and no device that is switched off stays hidden."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RULE = "def is_allowed(age):\n    return age >= 18\n"
CHECKS = """
from gazette_platform.rule import is_allowed
def test_adult_is_allowed(): assert is_allowed(18)
def test_child_is_refused(): assert not is_allowed(17)
"""
CHECKS_NOTHING = "from gazette_platform.rule import is_allowed\ndef test_rule(): is_allowed(1)\n"
FAILS = "def test_fails(): assert False\n"


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import mutants

    return mutants


@pytest.fixture
def devices(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import safety_devices

    return safety_devices


@pytest.fixture
def clone(tmp_path, monkeypatch, devices):
    """Return a function that makes a clone of a repository with one rule and one module of tests."""
    import broken_clone

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    made = []

    def make(checks):
        folder = tmp_path / "repository"
        (folder / "gazette_platform").mkdir(parents=True)
        (folder / "gazette_platform/__init__.py").touch()
        (folder / "gazette_platform/rule.py").write_text(RULE)
        (folder / "test_rule.py").write_text(checks)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "rule")):
            subprocess.run(["git", *words], cwd=folder, check=True)
        context = broken_clone.clone_of("HEAD", folder)
        made.append(context)
        return context.__enter__()

    yield make
    for context in made:
        context.__exit__(None, None, None)


def device(devices, text=">= 18", without=">= 0"):
    return devices.Device(
        name="age", module="rule.py", text=text, without=without, tests=["test_rule.py"]
    )


def test_larger_sample_contains_the_smaller_one(mutants):
    found = mutants.mutants_of("rule.py", RULE * 40)
    small, large = mutants.draw(found, 5, 26), mutants.draw(found, 20, 26)
    assert set(small) < set(large)
    assert mutants.draw(list(reversed(found)), 5, 26) == small
    assert mutants.draw(found, 5, 27) != small
    assert mutants.draw(found, len(found) + 1, 26) == found


def test_modules_weigh_as_much_as_they_have_mutants(mutants):
    small, large = (mutants.mutants_of(f"{n}.py", RULE * n) for n in (100, 300))
    drawn = Counter(one.module for one in mutants.draw([*small, *large], 400, 26))
    assert drawn["300.py"] / drawn["100.py"] == pytest.approx(3, rel=0.25)


def test_each_mutant_changes_its_line_alone(mutants):
    found = mutants.mutants_of("rule.py", RULE)
    assert [(one.operator, one.number) for one in found] == [
        ("NumberReplacer", 2),
        ("NumberReplacer", 2),
        ("ReplaceComparisonOperator_GtE_Gt", 2),
    ]
    texts = {one.changed(RULE) for one in found}
    assert {text.replace("  ", " ").split(" return ")[1] for text in texts} == {
        "age >= 19\n",
        "age >= 17\n",
        "age > 18\n",
    }


def test_star_of_arguments_is_not_a_product(mutants):
    assert mutants.mutants_of("rule.py", "def call(*words, **options): f(*words)\n") == []


def test_mutants_of_one_second_are_each_compiled(mutants, clone):
    """Python would take the code of the former mutant, as their sizes and seconds are the same."""
    tree = clone(CHECKS)
    assert tree.clean_run_s(["test_rule.py"]) > 0
    for limit, verdict in ((18, "survived"), (19, "killed"), (18, "survived"), (17, "killed")):
        with tree.broken("rule.py", RULE.replace("18", str(limit))):
            assert tree.run(["test_rule.py"], 60).verdict == verdict
    assert tree.read("rule.py") == RULE


def test_hanging_mutant_is_stopped(clone):
    tree = clone(CHECKS)
    with tree.broken("rule.py", "import time\ntime.sleep(600)\n"):
        assert tree.run(["test_rule.py"], 2).verdict == "timeout"


def test_tests_that_fail_anyway_stop_the_run(clone):
    with pytest.raises(SystemExit, match="fail before anything is broken"):
        clone(FAILS).clean_run_s(["test_rule.py"])


def test_device_is_noticed_by_a_test(devices, clone):
    found = devices.why_unnoticed(device(devices), clone(CHECKS))
    assert found == ("", "test_rule.py::test_child_is_refused")


@pytest.mark.parametrize(
    ("text", "without", "why"),
    [
        (">= 21", ">= 0", "the text occurs 0 times"),
        ("age", "0", "the text occurs 2 times"),
        (">= 18", ">=", "does not compile"),
        ("    return", "    pass\nimport missing\n#", "no test failed (killed)"),
    ],
)
def test_device_that_was_not_switched_off_fails(devices, clone, text, without, why):
    found, noticed_by = devices.why_unnoticed(device(devices, text, without), clone(CHECKS))
    assert why in found
    assert noticed_by == ""


def test_device_that_no_test_notices_fails(devices, clone):
    why, _ = devices.why_unnoticed(device(devices), clone(CHECKS_NOTHING))
    assert why.startswith("no test failed (survived)")
