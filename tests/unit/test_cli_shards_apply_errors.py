"""What `gazctl shards apply` says of a document that is not valid."""

from __future__ import annotations

import pytest

from gazette_platform.cli.gazctl.shards.specs import _parse
from gazette_platform.errors import ValidationError

REST = "sources: [{journal: a/b/c}], max_txn_duration: 1s"


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        (
            f"{{id: x, {REST}}}",
            "c.yaml: shards[0].id: invalid length (1; expected 4 <= length <= 512)",
        ),
        (
            "{id: My-Shard, sources: [{journal: a/b}]}",
            "c.yaml: shard My-Shard: sources[0].journal: ",
        ),
    ],
)
def test_errors_name_keys_of_the_document(shard, said):
    with pytest.raises(ValidationError) as caught:
        _parse(f"shards: [{shard}]".encode(), "c.yaml")
    assert str(caught.value).startswith(said)
