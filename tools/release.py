"""Makes a release of the commit at hand into dist/, and says what to tag and upload.

    python tools/release.py                    dry: nothing outside dist/ and build/ changes
    python tools/release.py --publish          also commits the changelog here and tags it; uploads nothing
    python tools/release.py --without image    leaves parts out (image, docs-site)

Everything is made in fresh clones, so that only what is committed counts. The time of the commit is the only time in
it: the same commit gives the same bytes. The wheel and the sdist are built twice, in two folders, and compared.
Hatchling and towncrier have the versions of uv.lock, in an environment of their own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
KEPT: Final = ROOT / "build" / "release"
"""The environment of the build tools, which later runs use again."""
OPTIONAL: Final = ("image", "docs-site")
IMAGE_NEEDS: Final = ("buildah", "strip", "debootstrap")
NAMESPACE: Final = uuid.UUID("8f0e4ac2-52a4-5d0d-9d6f-6b0b3a1e7d11")
"""Of the serial numbers of bills of materials."""


class ReleaseError(SystemExit):
    """The release cannot be made; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(f"release: {message}")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """What a program prints, without the last line's end.

    Raises:
        ReleaseError: it failed.
    """
    texts = [str(each) for each in command]
    program = shutil.which(texts[0])
    if program is None:
        raise ReleaseError(f"{texts[0]} is missing; `make install` brings uv, and git is needed")
    # What git says to programs that its hooks start would lead these to another tree.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON"))}
    done = subprocess.run(
        [program, *texts[1:]],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        output = f"{done.stdout}\n{done.stderr}".strip()
        raise ReleaseError(f"`{' '.join(texts)}` failed:\n{output}")
    return done.stdout.rstrip("\n")


def sha256(path: Path) -> str:
    """In hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Release:
    """One release.

    Attributes:
        version: of pyproject.toml.
        head: the commit that it is made of.
        epoch: when that was committed, in seconds since 1970.
        work: for clones; temporary.
        out: gets the files.
        left_out: parts that were not made, and how to make them.
    """

    version: str
    head: str
    epoch: int
    work: Path
    out: Path
    left_out: list[str] = field(default_factory=list)

    @property
    def clone(self) -> Path:
        """The commit of the release, checked out."""
        return self.work / "clone"

    @property
    def tag(self) -> str:
        """In git."""
        return f"v{self.version}"

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of all builds: times and identities that depend on the commit alone."""
        at = f"{self.epoch} +0000"
        return {
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "GIT_AUTHOR_DATE": at,
            "GIT_COMMITTER_DATE": at,
            "UV_SYSTEM_CERTS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def clone_to(self, folder: Path, origin: Path = ROOT) -> None:
        """Check the commit out into a folder."""
        run("git", "clone", "--quiet", "--no-hardlinks", "--no-checkout", origin, folder)
        commit = self.head if origin == ROOT else run("git", "rev-parse", "HEAD", cwd=origin)
        run("git", "checkout", "--quiet", "-B", "release", commit, cwd=folder)
        for name in (".venv", ".bootstrap"):
            (folder / name).symlink_to(ROOT / name)

    def install_tools(self) -> None:
        """Hatchling and towncrier, as uv.lock has them; nothing if they are there."""
        wanted = KEPT / "requirements.txt"
        KEPT.mkdir(parents=True, exist_ok=True)
        text = run(
            self.uv, "export", "--frozen", "--only-group", "release", "--no-emit-project", "--quiet"
        )
        if (
            wanted.exists()
            and wanted.read_text(encoding="utf-8") == text
            and self.tool("towncrier").exists()
        ):
            return
        print("release: installing hatchling and towncrier into build/release/venv")
        venv = KEPT / "venv"
        run(self.uv, "venv", "--quiet", "--clear", "--python", sys.executable, venv)
        new = KEPT / "new-requirements.txt"
        new.write_text(text, encoding="utf-8")
        python = venv / "bin" / "python"
        run(
            *(self.uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", new),
            UV_SYSTEM_CERTS="1",
        )
        new.rename(wanted)

    @property
    def uv(self) -> Path:
        """The one that `make install` brought."""
        return ROOT / ".bootstrap" / "bin" / "uv"

    def tool(self, name: str) -> Path:
        """A program of the build tools."""
        return KEPT / "venv" / "bin" / name

    def write_changelog(self) -> None:
        """Commit the changelog in the clone, and keep this release's part of it as notes."""
        day = datetime.fromtimestamp(self.epoch, UTC).date().isoformat()
        build = (self.tool("towncrier"), "build", "--version", self.version, "--date", day)
        # Fragments link from their folder; the changelog is one above.
        notes = run(*build, "--draft", cwd=self.clone).replace("](../", "](")
        begin = notes.find(f"## [{self.version}]")
        if begin < 0:
            raise ReleaseError(f"towncrier made no section of {self.version}:\n{notes}")
        (self.out / f"notes-{self.version}.md").write_text(f"{notes[begin:].strip()}\n", "utf-8")
        run(*build, "--yes", cwd=self.clone)
        changelog = self.clone / "CHANGELOG.md"
        text = changelog.read_text(encoding="utf-8")
        changelog.write_text(text.replace("](../", "]("), encoding="utf-8")
        run("git", "add", "--all", "CHANGELOG.md", "changelog.d", cwd=self.clone)
        name = run("git", "log", "-1", "--format=%an", self.head)
        address = run("git", "log", "-1", "--format=%ae", self.head)
        run(
            *("git", "-c", f"user.name={name}", "-c", f"user.email={address}"),
            *("-c", "commit.gpgsign=false", "commit", "--quiet", "--no-verify"),
            *("-m", f"release: {self.version}"),
            cwd=self.clone,
            **self.variables,
        )

    def build_packages(self) -> None:
        """The wheel, made from the sdist; twice, from two clones.

        Raises:
            ReleaseError: the two differ.
        """
        made: list[dict[str, str]] = []
        for name in ("first", "the-second-one"):
            source, out = self.work / name, self.work / f"{name}-dist"
            self.clone_to(source, self.clone)
            run(
                *(self.uv, "build", "--quiet", "--offline", "--no-build-isolation"),
                *("--python", self.tool("python"), "--out-dir", out, source),
                **self.variables,
            )
            paths = [*out.glob("*.whl"), *out.glob("*.tar.gz")]
            made.append({path.name: sha256(path) for path in paths})
        stem = f"gazette_platform-{self.version}"
        expected = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"}
        if set(made[0]) != expected:
            raise ReleaseError(f"uv build made {sorted(made[0])}, not {sorted(expected)}")
        if made[0] != made[1]:
            raise ReleaseError(
                f"two builds of one commit differ:\n{made[0]}\n{made[1]}\n"
                "Compare their files (`diffoscope`), and take the difference out of the build."
            )
        for name in made[0]:
            shutil.copyfile(self.work / "first-dist" / name, self.out / name)

    def write_bill(self) -> None:
        """The bill of materials (CycloneDX): each package of uv.lock that users may get, with its hashes."""
        text = run(
            *(self.uv, "export", "--frozen", "--no-dev", "--all-extras", "--quiet"),
            *("--format", "cyclonedx1.5"),
            cwd=self.clone,
        )
        bill: dict[str, Any] = json.loads(text)
        # uv draws a number and takes the present time; both shall follow from the commit.
        bill["metadata"]["timestamp"] = datetime.fromtimestamp(self.epoch, UTC).isoformat()
        bill.pop("serialNumber", None)
        drawn = uuid.uuid5(NAMESPACE, json.dumps(bill, sort_keys=True))
        path = self.out / f"gazette_platform-{self.version}.cdx.json"
        document = {"serialNumber": f"urn:uuid:{drawn}", **bill}
        path.write_text(f"{json.dumps(document, indent=2)}\n", encoding="utf-8")

    def pack(self, folder: Path, name: str, out: str) -> None:
        """A .tar.gz whose bytes follow from the files' content and whether they are programs."""

        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = self.epoch
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            return info

        with (
            (self.out / out).open("wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, mtime=self.epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(folder.rglob("*")):
                if not path.is_dir():
                    within = f"{name}/{path.relative_to(folder)}"
                    archive.add(path, within, recursive=False, filter=plain)

    def pack_charts(self) -> None:
        """Each Helm chart below deploy/helm, as `helm package` names it.

        `helm package` would write the present time into it.
        """
        charts = sorted(path.parent for path in self.clone.glob("deploy/helm/**/Chart.yaml"))
        charts = [each for each in charts if not any(o in each.parents for o in charts)]
        if not charts:
            self.left_out.append("chart: there is none below deploy/helm")
        for folder in charts:
            chart = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
            if str(chart.get("appVersion", self.version)) != self.version:
                raise ReleaseError(
                    f"{folder.relative_to(self.clone)}/Chart.yaml has appVersion {chart['appVersion']}: set it to {self.version}"
                )
            self.pack(folder, chart["name"], f"{chart['name']}-{chart['version']}.tgz")

    def build_docs(self) -> None:
        """The site of the documentation."""
        site = self.work / "site"
        work = self.clone / "build" / "docs-site"
        kept = ROOT / "build" / "docs-site"
        work.mkdir(parents=True)
        for name in ("venv", "installed.txt"):  # of `make docs-site`, if it has run here
            if (kept / name).exists():
                (work / name).symlink_to(kept / name)
        run(self.clone / "tools" / "docs_site", site, cwd=self.clone, **self.variables)
        self.pack(site, f"docs-{self.version}", f"gazette_platform-docs-{self.version}.tar.gz")

    def build_image(self) -> None:
        """The container image as an OCI archive, if this machine can make it."""
        missing = [name for name in IMAGE_NEEDS if shutil.which(name) is None]
        if "debootstrap" in missing and os.environ.get("BASE"):
            missing.remove("debootstrap")
        how = f"git checkout {self.tag} && make image && buildah push localhost/gazette:core REGISTRY/gazette:{self.version}"
        if missing or os.geteuid() != 0:
            lacks = ", ".join([*missing, *([] if os.geteuid() == 0 else ["root"])])
            self.left_out.append(f"image: this machine lacks {lacks}. Elsewhere: {how}")
            return
        run(self.clone / "tools" / "make_image", "core", cwd=self.clone)
        archive = self.out / f"gazette-core-{self.version}.oci.tar"
        run(
            *("buildah", "push", "--quiet", "localhost/gazette:core"),
            f"oci-archive:{archive}:gazette:{self.version}",
            STORAGE_DRIVER=os.environ.get("STORAGE_DRIVER", "vfs"),
        )

    def write_sums(self) -> list[str]:
        """SHA256SUMS of all files. Returns: its lines."""
        paths = sorted(path for path in self.out.iterdir() if path.name != "SHA256SUMS")
        lines = [f"{sha256(path)}  {path.name}" for path in paths]
        text = "".join(f"{line}\n" for line in lines)
        (self.out / "SHA256SUMS").write_text(text, encoding="utf-8")
        return lines

    def publish(self) -> None:
        """Bring the commit of the changelog here, and tag it.

        Raises:
            ReleaseError: this branch has moved meanwhile.
        """
        run("git", "fetch", "--quiet", self.clone, "release")
        run("git", "merge", "--quiet", "--ff-only", "FETCH_HEAD")
        run("git", "tag", "--annotate", self.tag, "-m", f"gazette_platform {self.version}")


def check_tree(version: str) -> None:
    """Look at what must be right before anything is built.

    Raises:
        ReleaseError: the tree has changes, the version is released, or the lock file has another one.
    """
    if changes := run("git", "status", "--porcelain"):
        raise ReleaseError(f"the tree has changes: commit them, or put them aside\n{changes}")
    if run("git", "tag", "--list", f"v{version}"):
        raise ReleaseError(
            f"v{version} is tagged: set the next version in pyproject.toml, and run `uv lock`"
        )
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    (own,) = [each for each in locked if each["name"] == "gazette-platform"]
    if own["version"] != version:
        raise ReleaseError(f"uv.lock has version {own['version']}, not {version}: run `uv lock`")
    if f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise ReleaseError(f"CHANGELOG.md has a section of {version} already")


def closing(release: Release, *, published: bool) -> str:
    """What is left to do by hand."""
    stem = f"dist/gazette_platform-{release.version}"
    tagging = (
        [f"git push origin HEAD {release.tag}"]
        if published
        else [f"make release PUBLISH=1    # commits the changelog and tags it as {release.tag}"]
    )
    steps = [
        *tagging,
        f"uv publish {stem}-py3-none-any.whl {stem}.tar.gz",
        f"attach the files of dist/ to the release {release.tag}, with dist/notes-{release.version}.md as its text",
        f"git checkout {release.tag} && tools/docs_site release {release.version} && git push origin docs-site",
    ]
    if list(release.out.glob("*.oci.tar")):
        steps.append(
            f"skopeo copy oci-archive:dist/gazette-core-{release.version}.oci.tar docker://REGISTRY/gazette:{release.version}"
        )
    charts = sorted(release.out.glob("*.tgz"))
    steps.extend(f"helm push dist/{path.name} oci://REGISTRY/charts" for path in charts)
    numbered = [f"  {number}. {text}" for number, text in enumerate(steps, 1)]
    left_out = [f"left out: {each}" for each in release.left_out]
    return "\n".join([*left_out, "next:", *numbered])


def make(release: Release, *, without: set[str], is_published: bool) -> None:
    """All parts, one after the other."""
    shutil.rmtree(release.out, ignore_errors=True)
    release.out.mkdir(parents=True)
    parts = {
        "tools": release.install_tools,
        "clone": lambda: release.clone_to(release.clone),
        "changelog": release.write_changelog,
        "wheel and sdist, twice": release.build_packages,
        "bill of materials": release.write_bill,
        "charts": release.pack_charts,
        "docs-site": release.build_docs,
        "image": release.build_image,
    }
    for name, part in parts.items():
        if name in without:
            release.left_out.append(f"{name}: as asked")
            continue
        print(f"release: {name}", flush=True)
        part()
    print("\n".join(release.write_sums()))
    if is_published:
        release.publish()
    print(closing(release, published=is_published))
    print(f"release: ok {release.version} of {release.head[:12]}{'' if is_published else ', dry'}")


def main(arguments: list[str]) -> int:
    """Exit code: 0 made, 1 not."""
    parser = argparse.ArgumentParser(description="Make a release into dist/.")
    parser.add_argument("--publish", action="store_true", help="commit the changelog, and tag it")
    parser.add_argument("--without", nargs="*", default=[], choices=OPTIONAL, help="parts")
    given = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = str(project["version"])
    check_tree(version)
    head = run("git", "rev-parse", "HEAD")
    epoch = int(run("git", "log", "-1", "--format=%ct", head))
    with tempfile.TemporaryDirectory(prefix="gazette-release-") as work:
        release = Release(version, head, epoch, Path(work), ROOT / "dist")
        make(release, without=set(given.without), is_published=given.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
