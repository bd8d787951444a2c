"""What a user sees after a wrong command: `wrong_commands.txt` has each command and its whole answer.

`pytest tests/integration/test_wrong_commands.py --rewrite` writes that file. Read it aloud before you commit it.
"""

import gzip
import os
import re
import shlex
from pathlib import Path

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform.cli import gazette

GOLDEN = Path(__file__).with_name("wrong_commands.txt")

pytestmark = pytest.mark.etcd

FILES = {
    "events.jsonl": b'{"id": 1, "type": "push"}\n{"id": 2, "type": "fork"}\n',
    "empty.jsonl": b"",
    "half.jsonl": b'{"id": 1}\n{"id":',
    "list.yaml": b"- name: a\n- name: b\n",
    "broken.yaml": b"name: [unclosed\n",
    "latin.yaml": b"name: caf\xe9\n",
    "misspelt.yaml": b"name: NAME/two\nreplicaton: 1\n",
    "no-codec.yaml": b"name: NAME/two\nreplication: 1\nfragment: {length: 1024}\n",
    "changed.yaml": b"name: NAME/one\nreplication: 1\nfragment: {length: 4096, compression_codec: GZIP, refresh_interval: 1m, stores: ['file:///']}\n",
    "revision.yaml": (
        b"name: NAME/one\nrevision: 3\nreplication: 1\nfragment: {length: 4096, compression_codec: GZIP, refresh_interval: 1m, stores: ['file:///']}\n"
    ),
    "delete.yaml": b"name: NAME/one\ndelete: true\n",
    "table.yaml": b"table: shop.events\nselector: name:prefix=NAME/\n",
    "shards.yaml": b"shards:\n- id: shard-1\n  sources: [{journal: NAME/none}]\n",
    "binary.gz": gzip.compress(b"{}\n", mtime=0),
}

COMMANDS = """
gazctl jurnals list
gazctl create NAME/x
gazette stop
gazctl journals lst
gazctl journals list --selektor name=a
gazctl journals list NAME/one --output yaml
gazctl journals list -l 'name in'
gazctl journals list -o xml
gazctl journals list NAME/none
gazctl journals create
gazctl journals create NAME/one
gazctl journals create /NAME/x --store file:///
gazctl journals create NAME/x/ --store file:///
gazctl journals create 'NAME/a b' --store file:///
gazctl journals create NAME/x --replication zero
gazctl journals create NAME/x --replication 9 --store file:///
gazctl journals create NAME/x --codec lz4
gazctl journals create NAME/x --partition-by week
gazctl journals create NAME/x --flush 1
gazctl journals create NAME/x --label env --store file:///
gazctl journals create NAME/x --store ftp://host/
gazctl journals create NAME/x --store s3://bucket
gazctl journals append
gazctl journals append NAME/none events.jsonl
gazctl journals append NAME/one missing.jsonl
gazctl journals append NAME/one .
gazctl journals append NAME/ events.jsonl
gazctl journals append NAME/one empty.jsonl
gazctl journals append events.jsonl NAME/one
gazctl journals append NAME/one events.jsonl --framing csv
gazctl journals append -l name=NAME/none events.jsonl
gazctl journals read
gazctl journals read NAME/none
gazctl journals read NAME/one --from yesterday
gazctl journals read NAME/one --from-savepoint none
gazctl journals read NAME/one NAME/none
gazctl journals read NAME/one -l name=NAME/one
gazctl journals read NAME/one --output missing/out.txt
gazctl journals read NAME/one --offsets events.jsonl
gazctl journals delete
gazctl journals delete NAME/none --yes
gazctl journals delete NAME/one
gazctl journals apply missing.yaml
gazctl journals apply list.yaml
gazctl journals apply broken.yaml
gazctl journals apply latin.yaml
gazctl journals apply misspelt.yaml
gazctl journals apply no-codec.yaml
gazctl journals apply changed.yaml
gazctl journals apply revision.yaml
gazctl journals apply delete.yaml
gazctl journals apply binary.gz
gazctl journals edit NAME/none
gazctl journals describe
gazctl journals describe NAME/none
gazctl journals fragments NAME/none
gazctl journals suspend NAME/none
gazctl journals reset-head NAME/none --yes
gazctl journals prune
gazctl journals verify NAME/none
gazctl journals top -d 0s --once
gazctl shards list
gazctl shards apply shards.yaml
gazctl shards apply missing.yaml
gazctl shards recover
gazctl shards recover shard-1 --dir .
gazctl lake list
gazctl lake list --tables missing
gazctl lake list shop.none
gazctl lake infer
gazctl lake infer shop.events
gazctl lake infer --name shop.events -l name:prefix=NAME/none/
gazctl lake infer --name shop.events -l name:prefix=NAME/
gazctl lake infer --name events -l name:prefix=NAME/
gazctl lake apply missing.yaml
gazctl lake apply table.yaml
gazctl lake check shop.none
gazctl lake flush shop.none
gazctl sql
gazctl sql 'SELEC 1'
gazctl sql 'SELECT * FROM shop.none'
gazctl sql "SELECT * FROM journal('NAME/none/')"
gazctl sql "SELECT nothing FROM journal('NAME/one')"
gazctl sql "SELECT * FROM 'missing.csv'"
gazctl attach-uuids missing.txt
gazctl savepoints get none
gazctl savepoints delete none
gazctl --broker.address localhost:8080 journals list
gazctl journals list --broker.address http://127.0.0.1:9
gazctl journals list --broker.address http://no-such-host.invalid:8080
gazctl journals list --broker.address ftp://localhost
gazctl journals list --broker.cert-file missing.pem
gazctl journals list --broker.auth-keys no-base64
gazctl journals list --log.level loud
gazctl journals list --zone
gazette statu
gazette status
gazette down
gazette logs
gazette env
gazette status --root missing
gazette up --without kafka
gazette up --port trino
gazette up --port trino=x
gazette up --port kafka=9092
gazette up --brokers 0
gazette up --store nope://
gazette up --metastore localhost
gazette up --trino localhost:8080
gazette up --catalog mysql://host/db
gazette up --definitions missing.py
gazette serve --broker.port x
gazette serve --broker.spool-dir events.jsonl
gazette serve --etcd.address etcd:2379
""".strip().splitlines()


@pytest.fixture
def world(shared, names, monkeypatch, tmp_path, capfdbinary):
    """Run commands beside one journal and some files. Gives what runs one, and the name of this test."""
    for variable in ("GAZETTE_ENDPOINTS", "GAZETTE_TABLE_SPECS", "EDITOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    for key in [
        key for key in os.environ if key.startswith(("GAZETTE_TRINO", "GAZETTE_ICEBERG", "DAGSTER"))
    ]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("GAZETTE_TABLES", "tables")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path(tmp_path, "tables").mkdir()
    gazctl = gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)
    name = names.prefix
    for file, content in FILES.items():
        Path(file).write_bytes(content.replace(b"NAME", name.encode()))
    made = gazctl("create", f"{name}/one", "--store", "file:///", "--replication", "1")
    assert made.code == 0, made.err
    assert gazctl("append", f"{name}/one", "events.jsonl").code == 0

    def run(line):
        program, *words = shlex.split(line.replace("NAME", name))
        if program == "gazctl":
            group, *rest = words
            done = gazctl(*rest, group=group)
            code, said = done.code, done.out.decode() + done.err
        else:
            code = gazette.main(words)
            said = b"".join(capfdbinary.readouterr()).decode()
        said = (
            said.replace(shared.address, "ADDRESS")
            .replace(str(tmp_path), "FOLDER")
            .replace(name, "NAME")
        )
        said = re.sub(r"revision \d+", "revision N", said)
        return f"$ {line}\n{re.sub(r' +$', '', said, flags=re.MULTILINE)}exit {code}\n"

    return run


def test_wrong_commands_say_what_is_wrong_and_how_to_go_on(world, request):
    answers = "\n".join(world(line) for line in COMMANDS)
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(answers)
    assert answers == GOLDEN.read_text()
