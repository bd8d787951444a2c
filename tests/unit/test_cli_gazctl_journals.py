import base64
import os
import re
import subprocess
import sys
import tempfile

import grpc
import orjson
import pytest
import yaml
from gazctl_runner import TWO_JOURNALS

from gazette_platform.cli.gazctl import main
from gazette_platform.message import fnv1a32, frame_fixed, modulo
from gazette_platform.protocol import Status
from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.benches.fake_broker import Fault


def test_apply_list_and_delete(gazctl, broker):
    created = "a/one: created\na/two: created\n2 created (revision 2)\n"
    assert gazctl("apply", stdin=TWO_JOURNALS).err == created
    assert gazctl("list").out == b"Name\na/one\na/two\n"
    table = gazctl("list", "-p", "-r", "--rf", "--stores", "-L", "env", "-l", "env=test")
    assert table.out.splitlines()[1].split() == [
        b"a/two", b"1", b"fake-broker", b"<none>", b"file:///", b"test",
    ]  # fmt: skip
    tree = yaml.safe_load(gazctl("list", "-o", "yaml").out)
    for child in tree["children"]:
        child["delete"] = True
    deleted = "a/one: deleted\na/two: deleted\n2 deleted (revision 3)\n"
    assert gazctl("apply", stdin=yaml.safe_dump(tree).encode()).err == deleted
    assert broker.journals == {}


def test_dry_run_prints_the_request_and_changes_nothing(gazctl, broker):
    result = gazctl("apply", "--dry-run", stdin=TWO_JOURNALS)
    assert result.out.startswith(b'changes: <\n  upsert: <\n    name: "a/one"')
    assert broker.calls["Apply"] == 0


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"name: [", "stdin: "),
        (b"nme: a/one", "nme"),
        (TWO_JOURNALS.replace(b"a/two", b"b/two"), "expected parent Name to prefix child"),
        (TWO_JOURNALS.replace(b"GZIP", b"GZIPPED"), "GZIPPED"),
        (TWO_JOURNALS.replace(b"refresh_interval: 1m", b""), "RefreshInterval"),
        (
            TWO_JOURNALS + b"---\n" + TWO_JOURNALS,
            "expected a single document in the stream, but found another",
        ),
        (b"name: a/", "expected one or more Children (a name that is empty or ends in '/'"),
    ],
    ids=["broken", "key", "prefix", "codec", "interval", "documents", "directory"],
)
def test_bad_specs_are_one_line_and_change_nothing(gazctl, broker, document, text):
    result = gazctl("apply", stdin=document)
    assert result.code == 1
    assert result.err.startswith("gazctl: error: stdin: ")
    assert text in result.err
    assert result.err.count("\n") == 1
    assert not broker.calls


def test_append_whole_input_is_one_append(gazctl, broker, tmp_path):
    broker.journal("a/one")
    (tmp_path / "in").write_bytes(b"x" * 3_000_000)
    result = gazctl("append", "-l", "name=a/one", "-i", "in")
    assert result.err == "appended 3000000 bytes to a/one at offset 0\n"
    assert broker.append_sizes == [3_000_000]


def test_append_lines_keeps_order_and_completes_the_last(gazctl, broker, tmp_path):
    broker.journal("a/one")
    lines = b"".join(b"%d\n" % n for n in range(400_000))
    (tmp_path / "in").write_bytes(lines + b"last")
    result = gazctl("append", "-l", "name=a/one", "-i", "in", "--framing", "lines")
    assert broker.journals["a/one"].content == lines + b"last\n"
    assert "one was added" in result.err
    assert f"appended 400001 records, {len(lines) + 5} bytes, to a/one\n" in result.err


def test_append_lines_spreads_at_random(gazctl, broker, tmp_path):
    for name in ("a/one", "a/two"):
        broker.journal(name)
    (tmp_path / "in").write_bytes(b"line\n" * 1000)
    gazctl("append", "-l", "name:prefix=a/", "-i", "in", "-f", "lines")
    sizes = [len(journal.content) for journal in broker.journals.values()]
    assert sum(sizes) == 5000
    assert min(sizes) > 1000


@pytest.mark.parametrize("is_base64", [False, True])
def test_append_maps_by_the_key_before_each_line(gazctl, broker, tmp_path, is_base64):
    names = ["a/one", "a/three", "a/two"]
    for name in names:
        broker.journal(name)
    keys = [b"k%d" % n for n in range(50)]
    encode = base64.b64encode if is_base64 else bytes
    (tmp_path / "in").write_bytes(b"".join(encode(key) + b"\r\n" + key + b"\n" for key in keys))
    flags = ["--base64"] if is_base64 else []
    gazctl("append", "-l", "name:prefix=a/", "-i", "in", "-f", "lines", "-m", "modulo", *flags)
    for index, name in enumerate(names):
        mine = [key for key in keys if modulo(key, 3) == index]
        assert broker.journals[name].content == b"".join(key + b"\n" for key in mine)


def test_append_fixed_frames_by_rendezvous(gazctl, broker, tmp_path):
    names = ["a/one", "a/two"]
    for name in names:
        broker.journal(name)
    keys = [b"k%d" % n for n in range(20)]
    (tmp_path / "in").write_bytes(b"".join(frame_fixed(k) + frame_fixed(k + b"v") for k in keys))
    gazctl("append", "-l", "name:prefix=a/", "-i", "in", "-f", "fixed", "-m", "rendezvous")
    first, second = (fnv1a32(name.encode()) for name in names)
    mine = [k for k in keys if fnv1a32(k) ^ first >= fnv1a32(k) ^ second]
    assert broker.journals["a/one"].content == b"".join(frame_fixed(k + b"v") for k in mine)


def test_append_direct_finds_every_journal(gazctl, broker, tmp_path):
    names = ["ex/aa", "ex/bb", "ex/cc"]
    for name in names:
        broker.journal(name)
    (tmp_path / "in").write_text("".join(f"{name}\nto {name}\n" for name in names))
    assert (
        gazctl("append", "-l", "name:prefix=ex/", "-i", "in", "-f", "lines", "-m", "direct").code
        == 0
    )
    for name in names:
        assert broker.journals[name].content == f"to {name}\n".encode()


@pytest.mark.parametrize(
    ("content", "flags", "text"),
    [
        (b"ex/no\nx\n", ["-f", "lines", "-m", "direct"], 'journal "ex/no" of record 1 is not'),
        (
            b"key\n",
            ["-f", "lines", "-m", "modulo"],
            "no record follows the key 'key' (--mapping modulo takes",
        ),
        (b"*\nx\n", ["-f", "lines", "-m", "modulo", "--base64"], "record 1 is not base64"),
        (frame_fixed(b"x")[:-1], ["-f", "fixed"], "ends within a frame (8 bytes"),
        (b"garbage!", ["-f", "fixed"], "detected de-synchronization at byte 0"),
        (b"", ["-m", "modulo"], "--mapping modulo: needs --framing"),
        (b"", ["--base64"], "--base64: needs --framing lines"),
    ],
    ids=["direct", "key", "base64", "frame", "sync", "mapping", "flag"],
)
def test_append_bad_input_is_one_error(gazctl, broker, tmp_path, content, flags, text):
    broker.journal("ex/aa")
    (tmp_path / "in").write_bytes(content)
    result = gazctl("append", "-l", "name:prefix=ex/", "-i", "in", *flags)
    assert result.code == 1
    assert text in result.err
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("gazctl: error: ")
    assert broker.journals["ex/aa"].content == b""


def test_append_lines_that_fails_says_how_much_was_acknowledged(gazctl, broker, tmp_path):
    broker.journal("ex/aa")
    broker.fail("Append", Fault(status=Status.NOT_ALLOWED))
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    result = gazctl("append", "-l", "name=ex/aa", "-i", "in", "-f", "lines")
    assert result.code == 1
    acknowledged, error = result.err.splitlines()
    assert acknowledged == "0 bytes were acknowledged before the error"
    assert error.startswith("gazctl: error: ex/aa: NOT_ALLOWED")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_times_beyond_64_bits_are_usage_errors(gazctl, broker, option):
    done = gazctl("fragments", option, str(1 << 63))
    assert done.code == 1
    assert option in done.err


def test_lines_without_their_last_newline_are_reported(gazctl, broker, tmp_path):
    lines = TWO_JOURNALS.replace(b"name: env, value: test", b"name: content-type, value: text/csv")
    assert gazctl("apply", stdin=lines).code == 0
    (tmp_path / "cut").write_bytes(b"1,2\n3,4")
    (tmp_path / "whole").write_bytes(b"1,2\n")
    told = gazctl("append", "a/two", "-i", "cut").err.splitlines()
    assert told[0] == "appended 7 bytes to a/two at offset 0"
    assert told[1] == (
        "warning: cut does not end with a newline: the next append to a/two would continue its last line. Run "
        "`echo | gazctl journals append a/two` to end the line now. If its fragment is stored already, append the last "
        "record again. (`--framing lines` adds the newline.)"
    )
    (tmp_path / "echo").write_bytes(b"\n")
    assert gazctl("append", "a/two", "-i", "echo").code == 0
    assert gazctl("read", "a/two").out == b"1,2\n3,4\n"
    assert "warning" not in gazctl("append", "a/two", "-i", "whole").err
    assert "warning" in gazctl("append", "a/one", "-i", "cut").err  # of no content-type, and CSV
    (tmp_path / "words").write_bytes(b"some words")
    assert "warning" not in gazctl("append", "a/one", "-i", "words").err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gazctl journals read a/", ["a/one", "a/sub/"]),
        ("gazctl journals read a/one b", ["b/only"]),
        ("gazctl journals list -l x --broker.cache.size 5 a/sub/t", ["a/sub/three", "a/sub/two"]),
        ("gazctl journals read none", []),
    ],
)
def test_shells_complete_names_of_journals(broker, words, expected):
    for name in ("a/one", "a/sub/two", "a/sub/three", "b/only"):
        broker.journal(name)
    completes = {"_GAZCTL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    completes |= {"COMP_CWORD": str(len(words.split()) - 1), "BROKER_ADDRESS": broker.address}
    ended = subprocess.run(
        [sys.executable, "-m", "gazette_platform.cli.gazctl"],
        check=False,
        env={**os.environ, **completes},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout.split(), ended.stderr) == (expected, "")


def test_no_broker_offers_nothing_and_says_nothing():
    completes = {"_GAZCTL_COMPLETE": "complete_bash", "COMP_WORDS": "gazctl journals read a"}
    completes |= {"COMP_CWORD": "3", "BROKER_ADDRESS": "http://127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "-m", "gazette_platform.cli.gazctl"],
        check=False,
        env={**os.environ, **completes},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_journals_are_named_as_arguments(gazctl, broker):
    broker.journal("a/one", b"content")
    broker.journal("a/two")
    assert gazctl("list", "a/one").out == b"Name\na/one\n"
    assert gazctl("list", "a/").out == b"Name\na/one\na/two\n"
    assert gazctl("read", "a/one").out == b"content"
    assert gazctl("read", "a/one", "--from", "@-1h").code == 0
    assert gazctl("reset-head", "a/two").out == b"a/two: head is 0\n"
    for command in (
        "list",
        "read",
        "fragments",
        "reset-head",
        "flush",
        "suspend",
        "edit",
    ):
        missing = gazctl(command, "a/one", "b/none")
        assert (missing.code, missing.out) == (1, b"")
        assert "b/none: JOURNAL_NOT_FOUND" in missing.err
        both = gazctl(command, "a/one", "-l", "name=a/one")
        assert both.code == 1
        assert "not both" in both.err
    for command in ("read", "append", "reset-head", "flush", "suspend", "edit"):
        neither = gazctl(command)
        assert neither.code == 1
        assert "name a journal, or give --selector" in neither.err


@pytest.mark.parametrize("command", [("read", "-l", "name=a/one"), ("fragments",)])
def test_invalid_time_is_wrong_usage(gazctl, broker, command):
    broker.journal("a/one")
    done = gazctl(*command, "--from", "yesterday")
    assert done.code == 1
    assert "--from" in done.err


def test_missing_input_and_journals_are_named(gazctl, broker, tmp_path):
    broker.journal("a/one")
    assert "no/file: No such file" in gazctl("append", "-l", "name=a/one", "-i", "no/file").err
    assert "is a directory" in gazctl("append", "-l", "name=a/one", "-i", tmp_path).err
    (tmp_path / "in").write_bytes(b"x")
    for command in (["append", "-i", "in"], ["read"], ["fragments"], ["prune"], ["edit"]):
        result = gazctl(*command, "-l", "name=b/one")
        assert result.code == 1
        assert "no journals match the selector (name=b/one)" in result.err
    bare = gazctl("read", "-l", "b/one").err
    assert "a journal is selected by its name as -l name=b/one" in bare
    assert "selected by its name" not in gazctl("read", "-l", "b").err
    assert gazctl("read", "-l", "a = = b").code == 1


def test_read_interleaves_whole_spans_and_keeps_offsets(gazctl, broker, tmp_path):
    broker.journal("a/one", b"1" * 200_000)
    broker.journal("a/two", b"2" * 200_000)
    result = gazctl("read", "-l", "name:prefix=a/", "--offsets-out", "offsets.json")
    assert re.fullmatch(rb"1{200000}2{200000}|2{200000}1{200000}", result.out)
    offsets = orjson.loads((tmp_path / "offsets.json").read_bytes())
    # Each with the create revision of its journal.
    assert offsets == {
        "a/one": 200_000,
        "a/one#created": 1,
        "a/two": 200_000,
        "a/two#created": 1,
    }
    broker.run(broker.extend("a/one", b"more"))
    again = ["--offsets", "offsets.json", "--offsets-out", "offsets.json", "-o", "out"]
    assert gazctl("read", "-l", "name:prefix=a/", *again).code == 0
    assert (tmp_path / "out").read_bytes() == b"more"
    assert orjson.loads((tmp_path / "offsets.json").read_bytes())["a/one"] == 200_004
    assert orjson.loads((tmp_path / "offsets.json.previous").read_bytes()) == offsets


def test_read_keeps_which_journal_offsets_are_of_though_a_broker_does_not_say(
    gazctl, broker, tmp_path
):
    broker.journal("a/one", b"12345")
    again = ["read", "-l", "name=a/one", "--offsets", "o.json", "--offsets-out", "o.json"]
    assert gazctl("read", "-l", "name=a/one", "--offsets-out", "o.json").code == 0
    broker.journals["a/one"].created = 0
    assert gazctl(*again).code == 0
    assert orjson.loads((tmp_path / "o.json").read_bytes()) == {"a/one": 5, "a/one#created": 1}
    broker.journals["a/one"].created = 2
    assert "a/one was deleted and made again" in gazctl(*again).err


def test_read_tail_learns_the_heads(gazctl, broker, tmp_path):
    broker.journal("a/one", b"12345")
    result = gazctl("read", "-l", "name=a/one", "--tail", "--offsets-out", "o.json")
    assert result.out == b""
    assert orjson.loads((tmp_path / "o.json").read_bytes()) == {"a/one": 5, "a/one#created": 1}


def test_read_refuses_bad_offsets(gazctl, broker, tmp_path):
    (tmp_path / "o.json").write_text('{"a/one": "x"}')
    assert "not a JSON object" in gazctl("read", "-l", "name=a/one", "--offsets", "o.json").err
    missing = gazctl("read", "-l", "name=a/one", "--offsets", "none.json")
    assert "--offsets: cannot read none.json: No such file" in missing.err
    (tmp_path / "o.json").write_text('{"a/one": -2}')
    refused = gazctl("read", "-l", "name=a/one", "--offsets", "o.json")
    assert 'o.json: the offset of "a/one" must be from 0 on' in refused.err


def test_read_says_that_an_offset_is_beyond_the_head(gazctl, broker, tmp_path):
    broker.journal("a/one", content=b"0123")
    (tmp_path / "o.json").write_text('{"a/one": 9}')
    result = gazctl("read", "-l", "name=a/one", "--offsets", "o.json")
    assert result.out == b""
    assert "a/one: nothing to read at offset 9, its write head is 4" in result.err


def test_read_looks_at_where_it_writes_before_it_reads(gazctl, broker):
    broker.journal("a/one", content=b"0123")
    flags = ("read", "-l", "name=a/one")
    for more in (("--offsets-out", "none/o.json"), ("--output", "none/content")):
        result = gazctl(*flags, *more)
        assert result.code == 1
        assert result.out == b""
        assert more[0] in result.err


def test_connection_options_that_cannot_work_are_named(gazctl, tmp_path):
    (tmp_path / "cert.pem").write_text("")
    for flags, text in (
        (("--broker.cert-file=none.pem",), "--broker.cert-file: cannot read none.pem"),
        (("--broker.trusted-ca-file=none.pem",), "--broker.trusted-ca-file: cannot read none.pem"),
        (("--broker.cert-file=cert.pem",), "--broker.cert-key-file: go together"),
        (("--broker.auth-token=a\nb",), "--broker.auth-token: has characters"),
        (("--selector=a = = b",), "--selector: could not match"),
    ):
        result = gazctl("list", *flags)
        assert result.code == 1
        assert text in result.err
        assert len(result.err.splitlines()) == 1


def test_fragments_as_table_json_and_prototext(gazctl, broker):
    broker.journal("a/one", b"x" * 25)
    table = gazctl("fragments", "-l", "name=a/one").out.splitlines()
    assert table[0].split() == [
        b"Journal", b"Offset", b"Length", b"Persisted", b"SHA1", b"Compression",
    ]  # fmt: skip
    assert table[3].split() == [
        b"a/one", b"20", b"5", b"1970-01-01T00:16:40Z", b"010101010101...", b"NONE",
    ]  # fmt: skip
    lines = gazctl("fragments", "-o", "json", "--url-ttl", "1m").out.splitlines()
    first = orjson.loads(lines[0])
    assert first["spec"]["end"] == 10
    assert "begin" not in first["spec"]
    assert first["signed_url"].startswith("file:///a/one/")
    assert b"end: 10\n" in gazctl("fragments", "-o", "proto").out
    assert "--url-ttl: " in gazctl("fragments", "--url-ttl", "soon").err


def test_reset_head_and_suspend(gazctl, broker):
    broker.journal("a/one", b"x" * 25)
    assert gazctl("reset-head", "-l", "name=a/one").out == b"a/one: head is 25\n"
    assert b"not suspended" in gazctl("suspend", "-l", "name=a/one").out
    broker.fail("Append", Fault(status=pb.SUSPENDED))
    assert gazctl("suspend", "-l", "name=a/one", "--force").out == b"a/one: suspended\n"


def test_store_health(gazctl, broker):
    assert gazctl("store-health", "file:///").out == b"Fragment store file:/// is healthy\n"
    broker.fail(
        "FragmentStoreHealth", Fault(status=pb.FRAGMENT_STORE_UNHEALTHY, details="no such bucket")
    )
    result = gazctl("store-health", "s3://bucket/", "--check-delete-prefix", "")
    assert result.code == 1
    assert "fragment store s3://bucket/ is not healthy: no such bucket" in result.err
    assert broker.requests[-1].check_delete


def editor(tmp_path, monkeypatch, *scripts):
    """An editor that runs the next Python script on its file each time it is opened."""
    for index, script in enumerate(scripts):
        (tmp_path / f"step-{index}.py").write_text(
            f"import pathlib, sys; file = pathlib.Path(sys.argv[1]); text = file.read_text(); {script}"
        )
    runner = tmp_path / "editor.py"
    runner.write_text(
        "import pathlib, runpy, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "step = sorted(here.glob('step-*.py'))[0]\n"
        "runpy.run_path(str(step))\n"
        "step.unlink()\n"
    )
    monkeypatch.setenv("GAZ_EDITOR", f"{sys.executable} {runner}")


def test_edit_applies_and_opens_again_on_error(gazctl, broker, tmp_path, monkeypatch):
    gazctl("apply", stdin=TWO_JOURNALS)
    editor(
        tmp_path,
        monkeypatch,
        "file.write_text(text.replace('retention: 1h0m0s', 'retention: soon'))",
        "assert '#⚠ edited specs: ' in text; "
        "file.write_text(text.replace('retention: soon', 'retention: 2h'))",
    )
    result = gazctl("edit", "-l", "name=a/one")
    assert result.err == "a/one: changed (revision 3)\n"
    assert broker.journals["a/one"].spec.fragment.retention_ns == 7200 * 10**9


def test_edit_without_a_change_cancels(gazctl, broker, tmp_path, monkeypatch):
    gazctl("apply", stdin=TWO_JOURNALS)
    editor(tmp_path, monkeypatch, "pass", "file.write_text('')")
    for _ in range(2):
        assert gazctl("edit", "-l", "name=a/one").err == "edit cancelled: nothing was changed\n"
    assert broker.calls["Apply"] == 1


def test_edit_gives_up_on_an_error_left_as_it_is(gazctl, broker, tmp_path, monkeypatch):
    gazctl("apply", stdin=TWO_JOURNALS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number, at_last in enumerate(("pass", "sys.exit(1)"), 1):
        editor(tmp_path, monkeypatch, "file.write_text('nonsense: 1')", at_last)
        result = gazctl("edit", "-l", "name=a/one")
        assert result.code == 1
        assert "nonsense" in result.err if number == 1 else "failed with exit code 1" in result.err
        assert re.search(r"what was edited is in \S+/gazctl-edit-\w+\.yaml ", result.err)
        kept = list(tmp_path.glob("gazctl-edit-*.yaml"))
        assert [path.read_text() for path in kept] == ["nonsense: 1"] * number


def test_missing_editor_is_named(gazctl, broker, monkeypatch):
    gazctl("apply", stdin=TWO_JOURNALS)
    monkeypatch.setenv("GAZ_EDITOR", "/no/such/editor")
    assert "editor /no/such/editor was not found" in gazctl("edit", "-l", "name=a/one").err


def test_usage_errors_exit_with_one_as_with_gazette(gazctl):
    assert gazctl("append").code == 1
    assert gazctl("no-such-command").code == 1
    assert gazctl("list", "--no-such-option").code == 1
    assert main([]) == main(["journals"]) == main(["no-such-group"]) == 1
    assert main(["--version"]) == main(["journals", "--help"]) == 0


def test_an_address_that_leads_to_another_server_is_said(gazctl, broker):
    details = "unknown service protocol.Journal"
    broker.fail("List", Fault(code=grpc.StatusCode.UNIMPLEMENTED, details=details))
    done = gazctl("list")
    assert done.code == 1
    assert f"{details} (is it a Gazette broker" in done.err


def test_options_are_named_as_they_are_given(gazctl):
    done = gazctl("list", "--broker.auth-keys", "%%%")
    assert done.code == 1
    assert "--broker.auth-keys: key 0 is not base64" in done.err
    assert "--broker.address: must begin with" in gazctl("list", "--broker.address", "x").err


def test_colons_of_addresses_are_not_emoji(gazctl, broker):
    broker.fail("List", Fault(code=grpc.StatusCode.UNKNOWN, details="cannot ask broker:1234: no"))
    assert "cannot ask broker:1234: no" in gazctl("list").err
