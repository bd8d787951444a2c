"""What a hosting site reads of this repository, and what a release leans on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(
    path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)


def test_hosted_ci_only_calls_ci_run():
    (workflow,) = (GITHUB / "workflows").iterdir()
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    (job,) = document["jobs"].values()
    checkout, run = job["steps"]
    assert run == {"run": ".ci/run"}
    assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
    # Else .ci/run could not be a program there.
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_hosted_ci_says_which_version_a_pinned_action_is():
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    used = [line for line in text.splitlines() if "uses:" in line]
    assert used
    assert all(re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) for line in used)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_issue_form_is_one_that_github_accepts(form):
    document = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= document.keys() <= {
        "name", "description", "body", "labels", "title", "assignees",
    }  # fmt: skip
    asked = [each for each in document["body"] if each["type"] != "markdown"]
    assert asked
    ids = [each["id"] for each in asked]
    labels = [each["attributes"]["label"] for each in asked]
    assert len(ids) == len(set(ids))
    assert len(labels) == len(set(labels))
    assert {each["type"] for each in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(each["attributes"]["options"] for each in asked if each["type"] == "dropdown")


def test_links_to_this_repository_from_a_pull_request_lead_somewhere():
    text = (GITHUB / "pull_request_template.md").read_text()
    links = re.findall(r"\]\(\.\./blob/main/([^)#]+)#([^)]+)\)", text)
    assert links
    for path, anchor in links:
        headings = re.findall(r"^#+ (.+)", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_lock_file_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (own,) = [each for each in packages if each["name"] == project["name"]]
    assert own["version"] == project["version"]
