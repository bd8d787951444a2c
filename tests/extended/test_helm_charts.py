"""The charts: helm, Kubernetes' schemas and a policy checker take them; each value counts; and what they render runs.

`pytest tests/extended/test_helm_charts.py --rewrite` writes the golden files in tests/extended/charts; look at the difference.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.serve import Broker
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).with_name("charts")
CHARTS = {
    "brokers": ROOT / "deploy/helm/gazette",
    "consumers": ROOT / "deploy/helm/gazette-consumer",
}
NAMES = sorted(path.name.removesuffix(".values.yaml") for path in CASES.glob("*.values.yaml"))
KUBERNETES = "1.37.0"
VALIDATOR = "kubernetes-validate==1.37.0"
KEY = "c2VjcmV0IGtleSBvZiBhIHRlc3QsIG5vIG1vcmU="
# What kube-score wants and we do not: a limit of CPU only slows a broker down; emptyDirs have limits of their own.
ACCEPTED = (
    "container-image-pull-policy",
    "container-ephemeral-storage-request-and-limit",
    "pod-networkpolicy",  # egress: brokers reach whatever store a journal names
)

# Go builds the tools, once.
pytestmark = pytest.mark.timeout(1800)


def run(*command, code=0, text=None, **env):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        input=text,
        env={**os.environ, **env},
    )
    assert done.returncode == code, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def helm():
    return tools.chart_tool("helm")


def render(helm, case, *options):
    """What a case's values make of its chart, as one text."""
    command = ("template", "gazette", CHARTS[case.partition("-")[0]], "--namespace", "streaming")
    values = ("--values", CASES / f"{case}.values.yaml")
    return run(helm, *command, "--kube-version", KUBERNETES, *values, *options)


def objects(text):
    return [each for each in yaml.safe_load_all(text) if each]


def only(found, kind, name):
    (it,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"] == name)
    return it


@pytest.mark.parametrize("case", NAMES)
def test_case_renders_as_its_golden_file(helm, case, request):
    golden, text = CASES / f"{case}.golden.yaml", render(helm, case)
    if request.config.getoption("--rewrite"):
        golden.write_text(text)
    assert text == golden.read_text(), "tests/extended/test_helm_charts.py --rewrite writes it"


@pytest.mark.parametrize("case", NAMES)
def test_lint_is_content(helm, case):
    values = ("--values", CASES / f"{case}.values.yaml")
    chart = CHARTS[case.partition("-")[0]]
    assert "0 chart(s) failed" in run(
        helm, "lint", "--strict", "--kube-version", KUBERNETES, chart, *values
    )


@pytest.mark.parametrize("case", NAMES)
def test_objects_fit_the_schemas_of_kubernetes(helm, case, tmp_path):
    found = objects(render(helm, case))
    own = [each for each in found if not each["apiVersion"].startswith("monitoring.coreos.com/")]
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(own))
    uv = Path(sys.executable).with_name("uv")
    validate = (uv, "tool", "run", "--from", VALIDATOR, "kubernetes-validate", "--strict")
    said = run(*validate, "-k", KUBERNETES, path)
    assert said.count("INFO") == len(own), said
    assert "WARN" not in said


# Others have no liveness probe, which kube-score wants: a broker that cannot go on ends by itself.
@pytest.mark.parametrize("case", ["brokers-secured", "consumers-secured"])
def test_policies_are_kept(helm, case, tmp_path):
    # Without the pod of `helm test`, which lives for a second.
    found = [each for each in objects(render(helm, case)) if each["kind"] != "Pod"]
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(found))
    ignored = [part for test in ACCEPTED for part in ("--ignore-test", test)]
    program = tools.chart_tool("kube-score")
    optional = ("container-seccomp-profile", "container-security-context-privileged")
    enabled = [part for test in optional for part in ("--enable-optional-test", test)]
    said = run(
        program, "score", path, *ignored, *enabled, "--ignore-container-cpu-limit", "-o", "json"
    )
    scored = [
        (each["object_name"], check["check"]["id"], check["grade"])
        for each in json.loads(said)
        for check in each["checks"] or ()
        if not check["skipped"]
    ]
    assert len(scored) > 20
    assert [each for each in scored if each[2] < 10] == []


def test_policy_checker_notices_a_root_user(helm, tmp_path):
    path = tmp_path / "objects.yaml"
    path.write_text(render(helm, "brokers-default").replace("readOnlyRootFilesystem: true", ""))
    said = run(tools.chart_tool("kube-score"), "score", path, "-o", "ci", code=1)
    assert said == ""


# ------------------------------------------------------------------------------------------------ values
def leaves(values, schema, path=()):
    """Each value of values.yaml by its path; what Kubernetes knows, such as resources, is one value."""
    if "properties" in schema:
        for key, value in values.items():
            yield from leaves(value, schema["properties"][key], (*path, key))
    else:
        yield path, schema, values


def another(schema, value):
    """A value that the schema takes and that differs."""
    if "enum" in schema:
        return next(each for each in reversed(schema["enum"]) if each != value)
    kind, pattern = schema["type"], schema.get("pattern", "")
    if kind == "boolean":
        return not value
    if kind == "integer":
        return value + 1
    if kind == "array":
        if schema["items"]["type"] == "object":
            return [{"name": "another"}]
        return [*value, "https://another.example:2379"]
    if kind == "object":
        return {"another": "one"}
    for text in ("another", "3Gi", "/another/prefix", "45s", "https://another.example:8080"):
        if re.search(pattern, text) and text != value:
            return text
    raise AssertionError(f"no other value for {schema}")


def at(values, path):
    for key in path:
        values = values[key] if isinstance(values, dict) and key in values else None
    return values


def replaced(values, path, value):
    values = copy.deepcopy(values)
    folder = values
    for key in path[:-1]:
        folder = folder.setdefault(key, {})
    folder[path[-1]] = value
    return values


def chart_values(chart):
    values = yaml.safe_load((CHARTS[chart] / "values.yaml").read_text())
    return leaves(values, json.loads((CHARTS[chart] / "values.schema.json").read_text()))


@pytest.mark.parametrize(
    ("chart", "path", "schema", "default"),
    [
        pytest.param(chart, *value, id=f"{chart}:{'.'.join(value[0])}")
        for chart in CHARTS
        for value in chart_values(chart)
    ],
)
def test_each_value_counts(helm, chart, path, schema, default, tmp_path):
    cases = [name for name in NAMES if name.startswith(chart)]
    for case in sorted(cases, key=lambda name: not name.endswith("secured")):
        given = yaml.safe_load((CASES / f"{case}.values.yaml").read_text()) or {}
        present = at(given, path)
        value = another(schema, default if present is None else present)
        changed = replaced(given, path, value)
        if path == ("serviceAccount", "create"):
            changed["serviceAccount"]["name"] = "given"
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(changed))
        command = ("template", "gazette", CHARTS[chart], "--namespace", "streaming")
        options = ("--kube-version", KUBERNETES, "--values", tmp_path / "values.yaml")
        if run(helm, *command, *options) != (CASES / f"{case}.golden.yaml").read_text():
            return
    raise AssertionError(f"{'.'.join(path)} changes nothing in any case")


@pytest.mark.parametrize(
    ("chart", "given", "said"),
    [
        ("brokers-default", "brokers.replica=3", "replica"),
        ("brokers-default", "brokers.fsync=always", "fsync"),
        ("brokers-default", "etcd.replicas=2", "replicas"),
        ("brokers-default", "brokers.spool.size=25", "size"),
        ("brokers-default", "serviceAccount.create=false", "serviceAccount.name is needed"),
        ("consumers-plain", "prefix=totals", "prefix"),
        ("consumers-plain", "command=null", "command"),
    ],
)
def test_bad_values_are_refused(helm, chart, given, said):
    kind = CHARTS[chart.partition("-")[0]]
    values = ("--values", CASES / f"{chart}.values.yaml", "--set", given)
    command = ("template", "gazette", kind, "--kube-version", KUBERNETES)
    assert said in run(helm, *command, *values, code=1)


def test_values_of_the_guide_render(helm, tmp_path):
    """The files of docs/guides/kubernetes.md, and its command for a release of one zone."""
    text = (ROOT / "docs/guides/kubernetes.md").read_text()
    files = dict(re.findall(r"```yaml file=(\S+)\n(.*?)```", text, re.DOTALL))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    own = yaml.safe_load(files["shop-values.yaml"])["totals"]
    (tmp_path / "totals.yaml").write_text(yaml.safe_dump(own))
    options = ("--kube-version", KUBERNETES, "--namespace", "streaming")
    zone = re.search(
        r"--set (brokers\.zone=\S+) --set (brokers\.nodeSelector\S+)$", text, re.MULTILINE
    )
    sets = ("--set", zone[1], "--set", zone[2].replace("\\\\", "\\"))
    made = run(
        helm,
        "template",
        "gazette",
        CHARTS["brokers"],
        *options,
        "-f",
        tmp_path / "values.yaml",
        *sets,
    )
    pod = only(objects(made), "StatefulSet", "gazette-broker")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"topology.kubernetes.io/zone": "eu-1a"}
    assert f"at most {pod['terminationGracePeriodSeconds']} s" in text
    kept = environment_of(pod, "ETCD_ADDRESS")
    shop = run(
        helm, "template", "shop", CHARTS["consumers"], *options, "-f", tmp_path / "totals.yaml"
    )
    pod = only(objects(shop), "Deployment", "shop-gazette-consumer")["spec"]["template"]["spec"]
    assert environment_of(pod, "ETCD_ADDRESS") == kept.replace(".streaming.svc", "")


def environment_of(pod, name):
    (value,) = (each["value"] for each in pod["containers"][0]["env"] if each["name"] == name)
    return value


def test_application_embeds_consumers_under_a_name_of_its_own(helm, tmp_path):
    app = tmp_path / "shop"
    (app / "templates").mkdir(parents=True)
    source = f"file://{CHARTS['consumers']}"
    entry = {
        "name": "gazette-consumer",
        "version": "0.1.0",
        "alias": "totals",
        "repository": source,
    }
    chart = {"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": [entry]}
    (app / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = yaml.safe_load((CASES / "consumers-plain.values.yaml").read_text())
    (app / "values.yaml").write_text(yaml.safe_dump({"totals": values}))
    run(helm, "dependency", "build", app)
    found = objects(run(helm, "template", "shop", app, "--kube-version", KUBERNETES))
    pod = only(found, "Deployment", "shop-totals")["spec"]["template"]
    assert pod["spec"]["containers"][0]["args"][:3] == ["python3", "-m", "shop.totals"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "totals"


def test_overlay_of_kustomize_changes_the_chart(helm, tmp_path):
    folder = tmp_path / "deploy"
    shutil.copytree(ROOT / "deploy/kustomize", folder / "kustomize")
    shutil.copytree(ROOT / "deploy/helm", folder / "helm")
    said = run(
        tools.chart_tool("kustomize"),
        *("build", "--enable-helm", "--helm-kube-version", KUBERNETES, "--helm-command", helm),
        folder / "kustomize",
    )
    found = objects(said)
    pod = only(found, "StatefulSet", "gazette-broker")["spec"]["template"]["spec"]
    assert pod.pop("dnsConfig") == {"options": [{"name": "ndots", "value": "2"}]}
    plain = [each for each in objects(render(helm, "brokers-default")) if each["kind"] != "Pod"]
    names = [(each["kind"], each["metadata"]["name"]) for each in plain]
    assert sorted((each["kind"], each["metadata"]["name"]) for each in found) == sorted(names)
    assert pod == only(plain, "StatefulSet", "gazette-broker")["spec"]["template"]["spec"]


# ------------------------------------------------------------------------------------------------ what runs
def environment(container, replaces):
    """Variables of a container, as a kubelet would fill them in."""
    env = {}
    for each in container.get("env", ()):
        value = each.get("value")
        if value is None:
            ((source, where),) = each["valueFrom"].items()
            value = replaces[where["fieldPath" if source == "fieldRef" else "name"]]
        env[each["name"]] = expanded(value, env)
    return env


def expanded(value, env):
    return re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], value)


@pytest.mark.parametrize("case", NAMES)
def test_variables_are_options(helm, case):
    is_broker = case.startswith("brokers")
    kind = "StatefulSet" if is_broker else "Deployment"
    (found,) = (
        each
        for each in objects(render(helm, case))
        if each["kind"] == kind and not each["metadata"]["name"].endswith("-etcd")
    )
    (container,) = found["spec"]["template"]["spec"]["containers"]
    pod = {"metadata.name": "gazette-broker-0", "status.podIP": "10.1.2.3"}
    pod["metadata.labels['topology.kubernetes.io/zone']"] = "eu-1a"
    keys = dict.fromkeys(("gazette-keys", "totals-keys"), KEY)
    env = environment(container, pod | keys)
    ours = {name for name in env if re.match("(BROKER|CONSUMER|ETCD|DEBUG|LOG)_", name)}
    program = ["gazette"] if is_broker else [sys.executable, "-m", "examples.stream_sum.summer"]
    if is_broker:
        program[0] = str(Path(sys.executable).with_name("gazette"))
    known = set(re.findall(r"env var:\s+(\w+)", run(*program, "serve", "--help", COLUMNS="400")))
    assert ours <= known
    flag = expanded(container["args"][-1 if is_broker or "=" in container["args"][-1] else 0], env)
    clean = {name: value for name, value in env.items() if not name.endswith("_FILE")}
    # Folders that the image, or a volume, has.
    clean |= {name: "/tmp" for name in clean if re.search("_(DIR|DIRECTORY|FILE_ROOT)$", name)}
    said = run(*program, "print-config", flag, **clean)
    assert f"zone = {flag.partition('=')[2]}" in said
    assert f"advertise = {env['BROKER_ADVERTISE' if is_broker else 'CONSUMER_ADVERTISE']}" in said
    assert "host = 0.0.0.0" in said


def test_pod_without_a_zone_does_not_start():
    gazette = Path(sys.executable).with_name("gazette")
    assert "broker.zone: invalid length" in run(gazette, "print-config", "--broker.zone=", code=1)


@pytest.mark.parametrize("case", [name for name in NAMES if name.startswith("brokers")])
def test_pod_may_take_as_long_as_a_broker_does(helm, case):
    found = objects(render(helm, case))
    (spec,) = (
        each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("-broker")
    )
    (container,) = spec["containers"]
    (drain,) = (each for each in container["env"] if each["name"] == "BROKER_DRAIN_TIMEOUT")
    broker = Broker(BrokerConfig(drain_timeout_s=float(drain["value"].removesuffix("s"))))
    paused_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] == broker.leaves_within_s + paused_s


def test_pods_fit_the_image(helm):
    lines = (ROOT / "deploy/image/Containerfile").read_text()
    pod = only(objects(render(helm, "brokers-default")), "StatefulSet", "gazette-broker")
    spec = pod["spec"]["template"]["spec"]
    user, group = re.search(r"^USER (\d+):(\d+)$", lines, re.MULTILINE).groups()
    security = spec["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (
        int(user),
        int(group),
        int(group),
    )
    (volume,) = re.search(r"^VOLUME (.+)$", lines, re.MULTILINE).groups()
    mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert mounts == {"spool": volume, "tmp": "/tmp"}
    assert 'ENTRYPOINT ["tini", "--"]' in lines


class Played:
    """What a chart renders, as processes of this machine: names and ports of pods are replaced by local ones."""

    def __init__(self, found, name, folder, secrets):
        self.found, self.name, self.folder, self.secrets = found, name, folder, secrets
        self.processes, self.ports = {}, {}

    def local(self, text, ordinal):
        """A text of a pod's manifest, on this machine."""
        pattern = rf"(?:{self.name}-etcd-(\d)\.[\w.-]+|0\.0\.0\.0|127\.0\.0\.1):(\d+)"

        def port(match):
            member = ordinal if match[1] is None else match[1]
            return f"127.0.0.1:{self.ports[f'etcd-{member}-{match[2]}']}"

        text = re.sub(pattern, port, text)
        for mounted, folder in self.secrets.items():
            text = text.replace(mounted, str(folder))
        return text

    def start_etcd(self, binary):
        container = self.container("etcd")
        replicas = only(self.found, "StatefulSet", f"{self.name}-etcd")["spec"]["replicas"]
        names = [f"etcd-{n}-{port}" for n in range(replicas) for port in (2379, 2380, 2381)]
        self.ports |= choose_ports(names)
        for n in range(replicas):
            env = {"POD_NAME": f"{self.name}-etcd-{n}"}
            data = self.folder / f"etcd-{n}"
            arguments = [
                self.local(expanded(each, env), n).replace("/var/lib/etcd", str(data))
                for each in container["args"]
            ]
            self.start(f"etcd-{n}", [str(binary), *arguments], {})

    def start_broker(self, ordinal):
        container, label = self.container("broker"), f"broker-{ordinal}"
        names = [f"{label}-{port}" for port in (8080, 9080, 8070)]
        self.ports |= choose_ports(names)
        pod = {"metadata.name": f"{self.name}-broker-{ordinal}", "status.podIP": "127.0.0.1"}
        pod["metadata.labels['topology.kubernetes.io/zone']"] = f"zone-{ordinal}"
        env = environment(container, pod | {"gazette-keys": self.secrets["gazette-keys"]})
        (self.folder / label / "spool").mkdir(parents=True)
        mine = {"8080": f"{label}-8080", "9080": f"{label}-9080", "8070": f"{label}-8070"}
        for name, value in env.items():
            if name in {"BROKER_PORT", "BROKER_HTTP_PORT", "DEBUG_PORT"}:
                env[name] = str(self.ports[mine[value]])
            elif name == "BROKER_ADVERTISE":
                env[name] = value.replace(":8080", f":{self.ports[mine['8080']]}")
            elif name == "BROKER_SPOOL_DIR":
                env[name] = str(self.folder / label / "spool")
            elif name == "ETCD_ADDRESS" or name.endswith("_FILE"):
                env[name] = self.local(value, 0)
        program = Path(sys.executable).with_name("gazette")
        arguments = [expanded(each, env) for each in container["args"][1:]]
        env["BROKER_FILE_ROOT"] = str(self.folder / "fragments")
        (self.folder / "fragments").mkdir(exist_ok=True)
        self.start(label, [str(program), *arguments], env)

    def container(self, component):
        pod = only(self.found, "StatefulSet", f"{self.name}-{component}")["spec"]["template"]
        return pod["spec"]["containers"][0]

    def start(self, label, command, env):
        with (self.folder / f"{label}.log").open("wb") as log:
            self.processes[label] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **env}
            )

    def text(self, label):
        return (self.folder / f"{label}.log").read_text()

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(20)


@pytest.fixture
def played(helm, tmp_path):
    """The secured case, whose brokers advertise addresses, since names of pods are not known here."""
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("broker")
    (tmp_path / "tls").mkdir()
    for source, name in (
        (issued.cert, "tls.crt"),
        (issued.key, "tls.key"),
        (authority.ca, "ca.crt"),
    ):
        shutil.copy(source, tmp_path / "tls" / name)
    options = ("--set", "brokers.advertise=ip,brokers.preStopSeconds=0,brokers.storesAllowed=null")
    found = objects(render(helm, "brokers-secured", *options))
    secrets = {"gazette-keys": KEY, "/etc/gazette/tls": tmp_path / "tls"}
    play = Played(found, "log", tmp_path, secrets)
    yield play
    play.stop()


async def test_pods_run_as_processes(played, etcd_binary):
    """Three members of etcd and two brokers with TLS and tokens, by the arguments and variables of their pods."""
    played.start_etcd(etcd_binary)
    brokers = ("broker-0", "broker-1")
    for n in range(len(brokers)):
        played.start_broker(n)
    for label in brokers:
        url = f"http://127.0.0.1:{played.ports[f'{label}-8070']}/debug/ready"
        await eventually(lambda url=url: asyncio.to_thread(answers, url), timeout_s=60, what=url)
    tls = played.secrets["/etc/gazette/tls"]
    config = ClientConfig(
        address=f"https://127.0.0.1:{played.ports['broker-0-8080']}",
        trusted_ca_file=tls / "ca.crt",
        cert_file=tls / "tls.crt",
        cert_key_file=tls / "tls.key",
        auth_keys=KEY,
    )
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=60 * 10**9,
    )
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(JournalSpec("a/journal", 2, fragment=fragment))])
        await client.append("a/journal", b"with two replicas\n")
    for label in brokers:
        played.processes[label].send_signal(signal.SIGTERM)
    for label in brokers:
        code = await asyncio.to_thread(played.processes[label].wait, patient(60))
        assert code == 0, played.text(label)
    stored = [path.read_bytes() for path in played.folder.glob("fragments/a/journal/*.raw")]
    assert stored == [b"with two replicas\n"]


def answers(url):
    try:
        with urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
