"""What `gazctl journals` prints for programs: the bytes of Gazette's tools, worked out by hand."""

import re

import orjson
from gazctl_runner import TWO_JOURNALS
from google.protobuf import text_format

from gazette_platform.protocol.pb import protocol_pb2 as pb


def test_list_as_json_and_prototext(gazctl, broker):
    gazctl("apply", stdin=TWO_JOURNALS)
    listing = orjson.loads(gazctl("list", "-l", "name=a/one", "-o", "json").out)
    assert listing["status"] == "OK"
    assert listing["journals"][0]["spec"]["fragment"]["refresh_interval"] == "60s"
    assert listing["journals"][0]["mod_revision"] == "2"
    text = gazctl("list", "-l", "name=a/one", "-o", "proto").out.decode()
    assert text.startswith('header: <\n  process_id: <\n    zone: "local"\n')
    assert '\njournals: <\n  spec: <\n    name: "a/one"\n    replication: 1\n' in text
    assert text_format.Parse(text, pb.ListResponse()).journals[0].spec.name == "a/one"


_SPAN = "0000000000000000-000000000000000a"


def test_fragments_as_json_are_of_these_bytes(gazctl, broker):
    broker.journal("a/one", b"x" * 15)
    sums = '"sum":{"part1":72340172838076673,"part2":72340172838076673,"part3":16843009}'
    rest = '"compression_codec":1,"backing_store":"file:///","mod_time":1000}'
    plain = (
        f'{{"spec":{{"journal":"a/one","end":10,{sums},{rest}}}\n'
        f'{{"spec":{{"journal":"a/one","begin":10,"end":15,{sums},{rest}}}\n'
    )
    assert gazctl("fragments", "-o", "json").out.decode() == plain
    broker.signature = "?a=<b>&c"
    signed = gazctl("fragments", "-o", "json", "--url-ttl", "1m").out.decode()
    url = f'"signed_url":"file:///a/one/{_SPAN}-{"01" * 20}.raw?a=\\u003cb\\u003e\\u0026c"'
    assert signed.splitlines()[0] == f"{plain.splitlines()[0][:-1]},{url}}}"


def test_fragments_as_prototext(gazctl, broker):
    broker.journal("a/one", b"x" * 25)
    broker.journal("a/two")
    text = gazctl("fragments", "-o", "proto", "--url-ttl", "1m").out.decode()
    head, *found, last = re.split("(?m)^(?=header|fragments)", text)[1:]
    assert head == last  # of a journal without fragments there is no more
    assert head == (
        'header: <\n  process_id: <\n    zone: "local"\n    suffix: "fake-broker"\n  >\n'
        '  route: <\n    members: <\n      zone: "local"\n      suffix: "fake-broker"\n    >\n'
        f'    endpoints: "{broker.address}"\n  >\n'
        "  etcd: <\n    cluster_id: 1\n    member_id: 2\n    revision: 1\n    raft_term: 3\n  >\n>\n"
    )
    # All pages of a journal are one response.
    assert [each.splitlines()[3].strip() for each in found] == ["end: 10", "begin: 10", "begin: 20"]
    assert found[0] == (
        'fragments: <\n  spec: <\n    journal: "a/one"\n    end: 10\n    sum: <\n'
        "      part1: 72340172838076673\n      part2: 72340172838076673\n      part3: 16843009\n    >\n"
        '    compression_codec: NONE\n    backing_store: "file:///"\n    mod_time: 1000\n  >\n'
        f'  signed_url: "file:///a/one/{_SPAN}-{"01" * 20}.raw"\n>\n'
    )


LISTING_YAML = """\
name: a/
replication: 1
fragment:
  length: 1048576
  compression_codec: GZIP
  stores:
  - file:///
  refresh_interval: 1m0s
  retention: 1h0m0s
children:
- name: a/one
  revision: 2
- name: a/two
  labels:
  - name: env
    value: test
  revision: 2
"""
LISTING_JSON = (
    '{{"status":"OK","header":{{"process_id":{{"zone":"local","suffix":"fake-broker"}},"route":'
    '{{"members":[{{"zone":"local","suffix":"fake-broker"}}],"primary":0,"endpoints":["{address}"]}},'
    '"etcd":{{"cluster_id":"1","member_id":"2","revision":"2","raft_term":"3"}}}},"journals":[{{"spec":{{"name":"a/two","replication":1,"labels":'
    '{{"labels":[{{"name":"env","value":"test","prefix":false}}]}},"fragment":{{"length":"1048576",'
    '"compression_codec":"GZIP","stores":["file:///"],"refresh_interval":"60s","retention":"3600s",'
    '"flush_interval":"0s","path_postfix_template":""}},"flags":0,"max_append_rate":"0",'
    '"suspend":null}},"mod_revision":"2","route":{{"members":[{{"zone":"local",'
    '"suffix":"fake-broker"}}],"primary":0,"endpoints":["{address}"]}},"create_revision":"1"}}]}}\n'
)


def test_listings_are_of_these_bytes(gazctl, broker):
    gazctl("apply", stdin=TWO_JOURNALS)
    assert gazctl("list", "-o", "yaml").out.decode() == LISTING_YAML
    listed = gazctl("list", "a/two", "-o", "json").out.decode()
    assert listed == LISTING_JSON.format(address=broker.address)
    with_query = TWO_JOURNALS.replace(b"file:///", b"s3://b/?profile=p&endpoint=e").replace(
        b"a/", b"b/"
    )
    gazctl("apply", stdin=with_query)
    listed = gazctl("list", "b/two", "-o", "json").out.decode()
    assert '"stores":["s3://b/?profile=p\\u0026endpoint=e"]' in listed
    nothing = gazctl("list", "-l", "name:prefix=c/", "-o", "json").out.decode()
    header = LISTING_JSON.format(address=broker.address).partition(',"journals":')[0]
    header = header.replace('"revision":"2"', '"revision":"3"')
    assert nothing == header + ',"journals":[]}\n'
    assert gazctl("list", "-l", "name:prefix=c/", "-o", "yaml").out == b"{}\n"
