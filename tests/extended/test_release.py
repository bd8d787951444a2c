"""A dry release from a fresh clone: the same commit gives the same files, and they hold what users need."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
STEM = f"gazette_platform-{VERSION}"
WHEEL, SDIST, BILL = f"{STEM}-py3-none-any.whl", f"{STEM}.tar.gz", f"{STEM}.cdx.json"
LAST_LINE = re.compile(rf"^release: ok {re.escape(VERSION)} of [0-9a-f]{{12}}, dry$", re.MULTILINE)

pytestmark = pytest.mark.timeout(600)


def git(folder, *command):
    done = subprocess.run(
        ["git", "-C", folder, *command], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def release(folder, *options, timeout_s=500):
    # With the clock an hour off, whatever reads it would differ.
    return subprocess.run(
        [sys.executable, folder / "tools/release.py", *options],
        cwd=folder,
        env=os.environ | {"TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What is committed, and the environment of this tree."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    for name in (".venv", ".bootstrap"):
        (folder / name).symlink_to((ROOT / name).resolve())
    for tag in git(folder, "tag", "--list", f"v{VERSION}").splitlines():
        git(folder, "tag", "--delete", tag)
    return folder


@pytest.fixture(scope="module")
def dist(clone):
    """All but the image, which has a test of its own; and what was printed."""
    done = release(clone, "--without", "image")
    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST_LINE.search(done.stdout), done.stdout
    return clone / "dist"


def test_dry_release_changes_nothing_outside_its_folder(clone, dist):
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "rev-parse", "HEAD") == git(ROOT, "rev-parse", "HEAD")
    assert git(clone, "tag", "--list", f"v{VERSION}") == ""


def test_same_commit_gives_the_same_bytes(clone, dist):
    sums = (dist / "SHA256SUMS").read_text()
    done = release(clone, "--without", "image")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (dist / "SHA256SUMS").read_text() == sums
    files = {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    listed = dict(reversed(line.split("  ")) for line in sums.splitlines())
    assert listed.keys() == files
    for name, digest in listed.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    assert {WHEEL, SDIST, BILL, f"notes-{VERSION}.md"} < files


@pytest.mark.timeout(1800)
def test_image_of_a_release_is_loaded_from_its_archive(clone, dist, tmp_path):
    for program in ("buildah", "debootstrap", "strip"):
        assert shutil.which(program), (
            f"{program} is missing; tools/check_needs.py says what to install"
        )
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", clone, other], check=True)
    for name in (".venv", ".bootstrap"):
        (other / name).symlink_to((ROOT / name).resolve())
    done = release(other, "--without", "docs-site", timeout_s=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out: docs-site: as asked" in done.stdout
    archive = other / "dist" / f"gazette-core-{VERSION}.oci.tar"

    def buildah(*command):
        env = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
        run = ("buildah", *command)
        return subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout

    image = buildah("pull", "--quiet", f"oci-archive:{archive}").strip()
    labels = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION
    container = buildah("from", image).strip()
    try:
        assert VERSION in buildah("run", container, "--", "gazette", "--version")
    finally:
        buildah("rm", container)


def test_wheel_holds_the_package_and_its_data_alone(dist):
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"{STEM}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"gazette_platform", f"{STEM}.dist-info"}
    packed = {name for name in names if name.endswith(".py")}
    tracked = git(ROOT, "ls-files", "gazette_platform").splitlines()
    assert packed == {name for name in tracked if name.endswith(".py")}
    assert f"{STEM}.dist-info/licenses/LICENSE" in names
    assert f"\nVersion: {VERSION}\n" in metadata


def test_sdist_holds_what_is_committed_and_the_changelog_of_the_version(dist):
    with tarfile.open(dist / SDIST) as sdist:
        names = {name.removeprefix(f"{STEM}/") for name in sdist.getnames()}
        changelog = sdist.extractfile(f"{STEM}/CHANGELOG.md").read().decode()
    fragments = {f for f in names if f.startswith("changelog.d/")}
    assert fragments == {"changelog.d/README.md"}
    tracked = git(ROOT, "ls-files", "gazette_platform", "tests", "docs", "tools").splitlines()
    assert set(tracked) <= names
    assert f"## [{VERSION}] " in changelog
    notes = (dist / f"notes-{VERSION}.md").read_text()
    assert notes.strip() in changelog
    # Fragments link from their folder, and the changelog from the one above.
    assert "](../" not in changelog


def test_bill_of_materials_names_every_package_of_an_install(dist):
    bill = json.loads((dist / BILL).read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    components = {each["name"]: each for each in bill["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for needed in project["dependencies"]:
        name = re.split(r"[\[><=~!]", needed)[0]
        assert components[name]["purl"] == f"pkg:pypi/{name}@{components[name]['version']}"
    assert "ruff" not in components


def test_release_refuses_a_tree_with_changes(clone, dist):
    (clone / "NEW").touch()
    done = release(clone)
    (clone / "NEW").unlink()
    assert done.returncode == 1
    assert "?? NEW" in done.stderr
    # What was made before is still there.
    assert (dist / WHEEL).exists()


def test_publishing_commits_the_changelog_and_tags_it(clone, dist, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", clone, other], check=True)
    git(other, "config", "user.name", "Release Test")
    git(other, "config", "user.email", "release@example.org")
    for name in (".venv", ".bootstrap"):
        (other / name).symlink_to((ROOT / name).resolve())
    before = git(other, "rev-parse", "HEAD")
    done = release(other, "--publish", "--without", "image", "docs-site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(other, "rev-parse", "HEAD~1") == before
    assert git(other, "rev-parse", f"v{VERSION}^{{commit}}") == git(other, "rev-parse", "HEAD")
    assert git(other, "status", "--porcelain") == ""
    assert (other / "dist" / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()
    assert "is tagged" in release(other).stderr
