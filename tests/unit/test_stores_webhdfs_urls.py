"""The hdfs store before it asks anybody; see tests/extended/test_hdfs_stores."""

from __future__ import annotations

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.stores import open_store


def opened(url):
    return open_store(url, file_root=None)


@pytest.mark.parametrize(
    ("url", "signed"),
    [
        (
            "hdfs://nn/lake/",
            "http://nn:9870/webhdfs/v1/lake/j/f%25?op=OPEN&user.name=gazette",
        ),
        (
            "hdfs://nn:8020/?user=bob%20b",
            "http://nn:9870/webhdfs/v1/j/f%25?op=OPEN&user.name=bob+b",
        ),
        (
            "hdfs://[::1]:8020/?user=a",
            "http://[::1]:9870/webhdfs/v1/j/f%25?op=OPEN&user.name=a",
        ),
        (
            "hdfs://cluster/a/?webhdfs=https://one:9871/,https://two:9871&find=j/&replace=k/&user=a",
            "https://one:9871/webhdfs/v1/a/k/f%25?op=OPEN&user.name=a",
        ),
    ],
)
async def test_where_files_are_opened(monkeypatch, url, signed):
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.delenv("GAZETTE_HDFS_DELEGATION_TOKEN", raising=False)
    assert await opened(url).sign_get("j/f%", 60.0) == signed


async def test_who_asks(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "carol")
    assert (await opened("hdfs://nn/").sign_get("f", 1)).endswith("?op=OPEN&user.name=carol")
    assert (await opened("hdfs://nn/?user=bob").sign_get("f", 1)).endswith("&user.name=bob")
    monkeypatch.setenv("GAZETTE_HDFS_DELEGATION_TOKEN", "a/b")
    assert (await opened("hdfs://nn/?user=bob").sign_get("f", 1)).endswith(
        "?op=OPEN&delegation=a%2Fb"
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("hdfs:///lake/", "missing namenode"),
        ("hdfs://nn/?webhdfs=nn:9870", "not the address of a NameNode"),
        ("hdfs://nn/?webhdfs=http://a,", "not the address of a NameNode"),
        ("hdfs://nn/?webhdfs=http://a?b=1", "not the address of a NameNode"),
        ("hdfs://nn/?region=x", "unknown query argument 'region'"),
        ("hdfs://nn/lake", "doesn't end in '/'"),
    ],
)
def test_urls_that_name_no_store(url, why):
    with pytest.raises(ValidationError, match=why):
        opened(url)
