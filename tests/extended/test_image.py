"""The container image: a broker in it serves and drains, and takes its spools up again after a kill."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
TAG = "localhost/gazette:core"
CORE_BYTES_MAX = 250_000_000
USER = 65532
ENV = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
JOURNAL = "image/events"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=60 * 10**9,
    ),
)

pytestmark = pytest.mark.timeout(900)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(*command):
    """Run a command, and return what it prints."""
    done = subprocess.run(
        command, env=ENV, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image():
    """The image, as buildah describes it."""
    for program in ("buildah", "debootstrap", "strip"):
        assert shutil.which(program), (
            f"{program} is missing; tools/check_needs.py says what to install"
        )
    run(str(ROOT / "tools" / "make_image"))
    return json.loads(run("buildah", "inspect", "--type", "image", TAG))


@pytest.fixture(scope="module")
def root_folder(image):
    """The file system of a container of the image."""
    container = run("buildah", "from", TAG)
    yield Path(run("buildah", "mount", container))
    run("buildah", "rm", container)


# What a runtime of containers does, by programs that each Debian has: the root folder, the spool, fragments, a user, and
# the command to run.
CONTAIN = """
root=$1 spool=$2 fragments=$3 user=$4; shift 4
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$spool" "$root/var/spool/gazette"
mount --bind "$fragments" "$root/mnt"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
"""


class Contained:
    """A broker in a container whose file system is read-only, as a user without rights."""

    def __init__(self, folder, root_folder, image, etcd):
        self.folder, self.spool, self.fragments = folder, folder / "spool", folder / "fragments"
        for owned in (self.spool, self.fragments):
            owned.mkdir(parents=True)
            os.chown(owned, USER, USER)
        self.port, self.http_port = free_port(), free_port()
        config = image["Docker"]["config"]
        self.env = dict(pair.split("=", 1) for pair in config["Env"])
        self.command = [*config["Entrypoint"], *config["Cmd"]]
        self.env |= {
            "ETCD_ADDRESS": etcd,
            "ETCD_PREFIX": "/image-test",
            "ETCD_LEASE_TTL": "2s",
            "BROKER_HOST": "127.0.0.1",
            "BROKER_HTTP_HOST": "127.0.0.1",
            "BROKER_PORT": str(self.port),
            "BROKER_HTTP_PORT": str(self.http_port),
            "BROKER_ID": "image-broker",
            "BROKER_FILE_ROOT": "/mnt",
            "LOG_LEVEL": "info",
        }
        self.root_folder = root_folder

    def start(self):
        """Run the image's command as PID 1 of namespaces of its own, on the network of this machine."""
        unshared = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        folders = map(str, (self.root_folder, self.spool, self.fragments))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*unshared, "sh", "-ec", CONTAIN, "sh", *folders, f"{USER}:{USER}", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
            )

    def kill(self, number):
        """Send a signal to PID 1 of the container."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), number)

    def is_ready(self):
        """Whether the broker says that it serves."""
        url = f"http://127.0.0.1:{self.http_port}/debug/ready"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False

    def text(self):
        return (self.folder / "log").read_text()

    def stop(self):
        if self.process.poll() is None:
            self.kill(signal.SIGKILL)
            self.process.wait(20)


@pytest.fixture
def contained(tmp_path, root_folder, image, etcd_binary):
    with EtcdServer(etcd_binary) as etcd:
        broker = Contained(tmp_path / "image", root_folder, image, etcd.endpoint)
        broker.start()
        yield broker
        broker.stop()


def test_image_is_small_and_not_root(image):
    config = image["Docker"]["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "gazette-ready"]
    assert config["Labels"]["org.opencontainers.image.revision"] == run("git", "rev-parse", "HEAD")
    (size,) = {
        each["size"]
        for each in json.loads(run("buildah", "images", "--json", TAG))
        if TAG in each["names"]
    }
    number, unit = size.split()
    assert float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit] <= CORE_BYTES_MAX


def test_image_holds_no_tools_to_build(root_folder):
    for program in ("gcc", "cc", "make", "git", "pip", "pip3", "uv"):
        assert not list(root_folder.glob(f"usr/bin/{program}")), program


async def test_broker_serves_drains_and_keeps_its_spool_over_a_kill(contained):
    config = ClientConfig(address=f"http://127.0.0.1:{contained.port}")
    await ready(contained)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(SPEC)])
        await client.append(JOURNAL, b"before the kill\n")
        contained.kill(signal.SIGKILL)
        await asyncio.to_thread(contained.process.wait, patient(20))
        assert not list(contained.fragments.rglob("*.raw"))
        contained.start()
        await ready(contained)
        await client.append(JOURNAL, b"after it\n")
        contained.kill(signal.SIGTERM)
        code = await asyncio.to_thread(contained.process.wait, patient(60))
    assert code == 0, contained.text()
    stored = b"".join(path.read_bytes() for path in sorted(contained.fragments.rglob("*.raw")))
    assert stored == b"before the kill\nafter it\n"


async def ready(contained):
    await eventually(
        lambda: asyncio.to_thread(contained.is_ready),
        timeout_s=patient(60),
        what="the broker serves",
    )
