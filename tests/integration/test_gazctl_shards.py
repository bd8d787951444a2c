"""`gazctl shards` against a process of a group over gRPC and etcd, and a real broker."""

import asyncio
import sys
import types
from dataclasses import replace

import orjson
import pytest
import yaml
from journal_specs import journal_spec
from shard_group import FAILED, PRIMARY, STANDBY, ShardGroup, shard

from gazette_platform.cli.gazctl import main
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.consumer.protocol import ShardSource
from gazette_platform.consumer.recoverylog import (
    CONTENT_TYPE,
    FnodeSegments,
    FsmHints,
    Player,
    Recorder,
    Segment,
)
from gazette_platform.errors import Suspended
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import AppendSuspend

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

SHARD = "shard-000"
LOG = f"logs/{SHARD}"
SOURCE = "a/source"

SPECS = f"""
common:
  recovery_log_prefix: logs
  hint_prefix: /PREFIX-hints
  hint_backups: 1
  max_txn_duration: 1s
  sources: [{{journal: {SOURCE}}}]
shards:
- id: {SHARD}
  labels: [{{name: team, value: search}}]
- id: shard-111
"""


@pytest.fixture
async def group(etcd, etcd_server, etcd_prefix):
    found = ShardGroup(etcd, etcd_server.endpoint, f"{etcd_prefix}-group")
    await found.start("ours")
    yield found
    await found.stop()
    await etcd.delete(f"{etcd_prefix}-group", prefix=True)


@pytest.fixture
async def broker(local_brokers):
    """A broker, and where its fragments are."""
    found = await local_brokers.start()
    address = f"http://127.0.0.1:{found.port}"
    return types.SimpleNamespace(address=address, fragments=local_brokers.fragments)


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        yield client


@pytest.fixture
def gazctl(group, broker, capfdbinary, tmp_path, monkeypatch):
    """Run a command in this process, but on an event loop of its own."""
    (ours,) = group.processes
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONSUMER_ADDRESS", ours.address)
    monkeypatch.setenv("BROKER_ADDRESS", broker.address)
    monkeypatch.chdir(tmp_path)

    async def run(*args, specs=None):
        if specs is not None:
            path = tmp_path / "specs.yaml"
            path.write_text(specs.replace("/PREFIX", group.prefix))
            args = (*args, "--specs", path)
        code = await asyncio.to_thread(main, ["shards", *map(str, args)])
        out, err = capfdbinary.readouterr()
        return types.SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    return run


def journal(name, content_type):
    return journal_spec(name, labels={"content-type": content_type} if content_type else {})


async def make_journals(client, *logs):
    await client.apply([Change(journal(SOURCE, "application/x-ndjson"))])
    await client.apply([Change(journal(log, CONTENT_TYPE)) for log in logs])


@pytest.fixture
async def journals(client):
    """A source, and the logs of two shards."""
    await make_journals(client, LOG, "logs/shard-111")


def specs_of(group):
    return {name: item.spec for name, item in group.processes[0].space.state.items.items()}


# ------------------------------------------------------------------------------------- apply


async def test_ca6_apply_checks_what_shards_refer_to_before_anything_changes(group, gazctl, client):
    async def refused():
        done = await gazctl("apply", specs=SPECS)
        assert done.code == 1
        assert not specs_of(group)
        return done.err

    await client.apply([Change(journal("another/one", ""))])
    assert f"Shard[{SHARD}].Sources[{SOURCE}]: named journal does not exist ({SOURCE};" in (
        await refused()
    )
    await client.apply([Change(journal(SOURCE, ""))])
    assert f"Shard[{SHARD}].Sources[{SOURCE}]: must have one label content-type" in await refused()
    await client.apply([Change(journal(SOURCE, CONTENT_TYPE), revision=-1)])
    assert f"unrecognized content-type ({CONTENT_TYPE});" in await refused()
    await client.apply([Change(journal(SOURCE, "application/x-ndjson"), revision=-1)])
    assert f"Shard[{SHARD}].RecoveryLog: named journal does not exist ({LOG};" in await refused()
    await client.apply([Change(journal(LOG, CONTENT_TYPE))])
    await client.apply([Change(journal("logs/shard-111", "application/x-ndjson"))])
    assert f"Shard[shard-111].RecoveryLog: expected label content-type to be {CONTENT_TYPE}" in (
        await refused()
    )
    await client.apply([Change(journal("logs/shard-111", CONTENT_TYPE), revision=-1)])
    done = await gazctl("apply", specs=SPECS)
    assert (done.code, done.out) == (0, "")
    assert "2 created (revision " in done.err
    assert sorted(specs_of(group)) == [SHARD, "shard-111"]


async def test_apply_compares_specs_that_give_no_revision(group, gazctl, journals):
    assert (await gazctl("apply", specs=SPECS)).code == 0
    before = specs_of(group)
    again = await gazctl("apply", "specs.yaml")
    assert (again.code, again.err.splitlines()[-1]) == (0, "2 unchanged")
    changed = SPECS.replace("max_txn_duration: 1s", "max_txn_duration: 3s")
    refused = await gazctl("apply", specs=changed)
    assert refused.code == 1
    assert "+  max_txn_duration: 3s" in refused.err
    assert f"or run `gazctl shards edit {SHARD}`" in refused.err
    assert specs_of(group) == before
    assert (await gazctl("apply", "--force", specs=changed)).code == 0
    assert specs_of(group)[SHARD].max_txn_duration_ns == 3 * SECOND_NS


async def test_what_is_listed_as_yaml_is_applied_edited_and_deleted(
    group, gazctl, journals, tmp_path, monkeypatch
):
    await gazctl("apply", specs=SPECS)
    before = specs_of(group)
    listed = await gazctl("list", "-o", "yaml")
    assert yaml.safe_load(listed.out)["common"]["hint_backups"] == 1
    assert (await gazctl("apply", specs=listed.out)).code == 0
    assert specs_of(group) == before
    # These are not the revisions any more.
    stale = await gazctl("apply", specs=listed.out)
    assert stale.code == 1
    assert f"{SHARD} is at revision " in stale.err
    assert "and the specs expect revision " in stale.err
    # An editor, which is a program with arguments.
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys; path = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text().replace('max_txn_duration: 1s', 'max_txn_duration: 2s'))\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    edited = await gazctl("edit", "-l", "team=search")
    assert (edited.code, ": changed (revision " in edited.err) == (0, True)
    expected = replace(before[SHARD], max_txn_duration_ns=2 * SECOND_NS)
    assert specs_of(group) == before | {SHARD: expected}
    assert "edit cancelled" in (await gazctl("edit", SHARD)).err
    deleted = await gazctl("apply", specs=f"shards: [{{id: {SHARD}, delete: true, revision: -1}}]")
    assert f"{SHARD}: deleted (revision " in deleted.err
    assert [*specs_of(group)] == ["shard-111"]


# -------------------------------------------------------------------------------------- list


async def test_list_shows_status_replicas_labels_and_lag(group, gazctl, journals, client):
    (ours,) = group.processes
    assert "there are no shards yet" in (await gazctl("list")).err
    spec = shard(SHARD, labels={"team": "search"}, sources=(ShardSource(SOURCE),), hot_standbys=2)
    replica = await group.serve(spec, ours)
    replica.now(read_through={SOURCE: 10})
    await client.append(SOURCE, b"x" * 31 + b"\n")
    await group.assign(SHARD, "zone-standby", 1, STANDBY)
    await group.put_shard(shard("shard-111"))
    await group.assign("shard-111", "broken", 0, FAILED)
    done = await gazctl("list", "-p", "-r", "--rf", "--lag", "-L", "team")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["ID", "Status", "RF", "Primary", "Replicas", "team", "Lag"],
        [SHARD, "PRIMARY", "3", "ours:PRIMARY", "zone-standby:STANDBY", "search", f"{SOURCE}:22"],
        ["shard-111", "FAILED", "1", "broken:FAILED", "<none>", "<none>", "<none>"],
    ]
    assert done.err.splitlines() == [
        "shard-111: failed at broken: some error",
        "once the cause is mended, `gazctl shards unassign --failed` with the same shards has them tried again",
    ]
    selected = await gazctl("list", "-l", "team=search", "-o", "json")
    (found,) = orjson.loads(selected.out)["shards"]
    assert (found["spec"]["id"], found["spec"]["max_txn_duration"]) == (SHARD, "1s")
    assert [each["code"] for each in found["status"]] == ["PRIMARY", "STANDBY"]
    assert selected.out.endswith('"}],"extension":null}\n')
    assert [*found] == ["spec", "mod_revision", "route", "status", "create_revision"]
    assert "code: PRIMARY" in (await gazctl("list", SHARD, "-o", "proto")).out
    missing = await gazctl("list", "shard-999")
    assert (missing.code, "shard-999: SHARD_NOT_FOUND" in missing.err) == (1, True)


async def test_options_may_stand_anywhere_and_errors_name_them(gazctl, group):
    (ours,) = group.processes
    done = await gazctl("list", "--consumer.address", "http://127.0.0.1:1")
    assert (done.code, "consumer http://127.0.0.1:1 is not reachable" in done.err) == (1, True)
    assert (await gazctl("list", f"--consumer.address={ours.address}")).code == 0
    for option, value in (
        ("--consumer.address", "nonsense"),
        ("--consumer.cert-file", "none.pem"),
        ("--consumer.auth-keys", "!"),
        ("--selector", "a=b=c"),
    ):
        done = await gazctl("list", option, value)
        assert (done.code, option in done.err) == (1, True)
    done = await gazctl("edit", "-l", "team=none")
    assert (done.code, "no shards match the selector (team=none)" in done.err) == (1, True)
    assert "give IDs or --selector, and not both" in (await gazctl("edit", SHARD, "-l", "")).err


# ---------------------------------------------------------------------------------- unassign


async def test_unassign_prints_who_lost_an_assignment(group, gazctl):
    (ours,) = group.processes
    for name, status in ((SHARD, PRIMARY), ("shard-111", FAILED)):
        await group.put_shard(shard(name))
        await group.assign(name, ours, 0, status)
    dry = await gazctl("unassign", "-l", "", "--dry-run")
    assert (dry.code, dry.out) == (0, f"{SHARD}\nshard-111\n")
    assert dry.err == "2 of 2 shards would be unassigned\n"
    failed = await gazctl("unassign", "-l", "", "--failed")
    assert (failed.out, failed.err) == ("shard-111\n", "1 of 2 shards unassigned\n")
    assert [*ours.space.state.assignments] == [SHARD]
    assert (await gazctl("unassign", SHARD)).out == f"{SHARD}\n"
    assert not ours.space.state.assignments


async def test_unassign_of_no_match_succeeds(gazctl, group):
    done = await gazctl("unassign", "-l", "team=none")
    assert (done.code, done.out, done.err) == (0, "", "0 of 0 shards unassigned\n")
    missing = await gazctl("unassign", SHARD)
    assert (missing.code, f"{SHARD}: SHARD_NOT_FOUND" in missing.err) == (1, True)


# --------------------------------------------------------------------------- recover, prune


def logged(group, name=SHARD, **changes):
    hint_prefix = f"{group.prefix}-hints"
    return shard(name, recovery_log_prefix="logs", hint_prefix=hint_prefix, **changes)


async def put_hints(group, slot, hints, name=SHARD):
    await group.etcd.put(f"{group.prefix}-hints/{name}.{slot}", hints.to_json())


async def recorded(client, directory, log=LOG):
    """A recorder that has taken over an empty log."""
    player = Player(client, FsmHints(log), directory)
    player.inject_handoff(7)
    start = await player.play()
    return await Recorder.start(client, client.append_service(), start, 7)


def write(recorder, directory, name, content):
    recorder.write(recorder.create(str(directory / name)), 0, content)


async def test_recover_plays_the_log_into_a_directory(group, gazctl, journals, client, tmp_path):
    recorder = await recorded(client, tmp_path / "of-shard")
    write(recorder, tmp_path / "of-shard", "one", b"first")
    hints = await recorder.build_hints()
    write(recorder, tmp_path / "of-shard", "two", b"behind the hints")
    await recorder.barrier()
    await group.put_shard(logged(group, hint_backups=1))
    await put_hints(group, "backup.0", hints)
    target = tmp_path / "recovered"
    done = await gazctl("recover", "--id", SHARD, "--dir", target)
    assert (done.code, done.out) == (0, "")
    assert f"recovered 2 files of shard {SHARD} from {LOG}" in done.err
    contents = {path.name: path.read_bytes() for path in target.iterdir()}
    assert contents == {"one": b"first", "two": b"behind the hints"}
    again = await gazctl("recover", "--id", SHARD, "-d", target)
    assert (again.code, "not an empty directory" in again.err) == (1, True)
    assert (target / "one").exists()
    await group.put_shard(shard("shard-111"))
    none = await gazctl("recover", "--id", "shard-111", "-d", tmp_path / "none")
    assert (none.code, "shard shard-111 has no recovery log" in none.err) == (1, True)


def stored(broker, log=LOG):
    folder = broker.fragments / log
    return sorted(int(path.name[:16], 16) for path in folder.rglob("[!.]*") if path.is_file())


async def filled(client, recorder, directory, log=LOG):
    """Three files, each in a stored fragment of its own. Returns: hints after each."""
    known = []
    for name in ("one", "two", "three"):
        write(recorder, directory, name, b"x" * 100)
        known.append(await recorder.build_hints())
        await client.flush(f"name={log}")
    return known


async def test_g1_prune_keeps_what_any_hints_need_and_removes_the_rest(
    group, gazctl, journals, client, broker, tmp_path
):
    directory = tmp_path / "of-shard"
    recorder = await recorded(client, directory)
    known = await filled(client, recorder, directory)
    recorder.remove(str(directory / "one"))
    recorder.remove(str(directory / "two"))
    latest = await recorder.build_hints()
    begins = stored(broker)
    await group.put_shard(logged(group, hint_backups=1))
    flags = ("-l", "", "--file-root", broker.fragments)
    await put_hints(group, "primary", latest)
    done = await gazctl("prune", *flags)
    assert f"{LOG}: skipped, some hints of its shard are missing" in done.err
    await put_hints(group, "backup.0", known[1])  # which needs the first file
    assert (await gazctl("prune", *flags)).code == 0
    assert stored(broker)[-3:] == begins[-3:]
    left = stored(broker)
    await put_hints(group, "backup.0", latest)
    dry = await gazctl("prune", *flags, "--dry-run")
    assert dry.code == 0
    # Brokers may still name what the run before has removed.
    told = {
        int(line.partition(f"would remove {LOG}/")[2][:16], 16) for line in dry.out.splitlines()
    }
    assert set(left[:-1]) <= told <= set(begins[:-1])
    assert stored(broker) == left
    done = await gazctl("prune", *flags)
    assert (done.code, done.out.count(f"removed {LOG}/") >= len(left) - 1) == (0, True)
    assert stored(broker) == begins[-1:]
    target = tmp_path / "recovered"
    assert (await gazctl("recover", "--id", SHARD, "-d", target)).code == 0
    assert [path.name for path in target.iterdir()] == ["three"]


async def test_prune_leaves_logs_alone_that_it_does_not_know_enough_of(
    group, gazctl, journals, client, broker, tmp_path
):
    directory = tmp_path / "of-shard"
    recorder = await recorded(client, directory)
    (*_, latest) = await filled(client, recorder, directory)
    begins = stored(broker)
    await group.put_shard(logged(group, labels={"team": "search"}))
    await group.put_shard(logged(group, "shard-111"))
    far = FnodeSegments(9, (Segment(7, 9, first_offset=1 << 40, last_seq_no=9),))
    flags = ("--file-root", broker.fragments)
    # As of a fork: its history is in the log of a shard that is not selected.
    foreign = replace(far.segments[0], log=LOG, last_offset=1 << 41)
    own = FnodeSegments(10, (Segment(7, 10, last_seq_no=10),))
    forked = FsmHints("logs/shard-111", (FnodeSegments(9, (foreign,)), own))
    await put_hints(group, "primary", forked, "shard-111")
    done = await gazctl("prune", "-l", "id=shard-111", *flags)
    assert (done.code, done.out) == (0, ""), done.err
    assert f"{LOG}: skipped, it is of a shard that is not selected" in done.err
    # Content that is not stored yet, and not needed: who writes it?
    await recorder.barrier()
    write(recorder, directory, "four", b"x")
    await recorder.barrier()
    await put_hints(group, "primary", FsmHints(LOG, (far,)))
    done = await gazctl("prune", "-l", "team=search", *flags)
    assert (done.code, done.out) == (1, "")
    assert f"another process writes {LOG} whose shard is not selected" in done.err
    await put_hints(group, "primary", latest)
    with pytest.raises(Suspended):  # which it is from now on
        await client.append(LOG, b"", suspend=AppendSuspend.SUSPEND_NOW)
    done = await gazctl("prune", "-l", "team=search", *flags)
    assert (done.code, f"{LOG}: skipped, it is suspended" in done.err) == (0, True)
    assert stored(broker)[: len(begins)] == begins


async def test_prune_needs_the_hints_of_all_that_are_selected(
    group, gazctl, journals, client, broker, tmp_path
):
    recorder = await recorded(client, tmp_path / "of-shard")
    await filled(client, recorder, tmp_path / "of-shard")
    begins = stored(broker)
    await group.put_shard(logged(group))
    await group.etcd.put(f"{group.prefix}-hints/{SHARD}.primary", b"\xff")
    done = await gazctl("prune", "-l", "", "--file-root", broker.fragments)
    assert (done.code, f"hints of {SHARD}" in done.err) == (1, True)
    assert stored(broker) == begins
