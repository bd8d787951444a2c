"""The next step after errors of specs: their texts are Gazette's, which say what is wrong and no more."""

import re

__all__ = ["with_advice"]

_EXAMPLE = "`gazctl journals create NAME --print` prints a whole spec"
_ADVICE = (
    (
        r"not a valid token",
        "letters, digits and - _ + / . are allowed, and = % in the name of a journal",
    ),
    (r"cannot begin with '/'", "leave out the first /"),
    (
        r"invalid scheme \(",
        "stores begin with s3://, gs://, azure://, azure-ad://, hdfs:// or file://",
    ),
    (r"path component doesn't end in '/'", "end it with /, as in s3://bucket/folder/"),
    (
        r"Fragment\.CompressionCodec: invalid value",
        f"fragment.compression_codec is GZIP, for example; {_EXAMPLE}",
    ),
    (r"expected a mapping of keys to values", f"a spec is `key: value` lines; {_EXAMPLE}"),
    (r"the document is not UTF-8", "give a YAML file, as UTF-8"),
    (r"invalid MaxTxnDuration", "set max_txn_duration, as in 1s"),
)


def with_advice(text: str) -> str:
    """An error's text, and the next step if one is known.

    >>> with_advice("a/b: Fragment.Stores[0]: invalid scheme (ftp)")
    'a/b: Fragment.Stores[0]: invalid scheme (ftp); stores begin with s3://, gs://, azure://, azure-ad://, hdfs:// or file://'
    >>> with_advice("no such journal")
    'no such journal'
    """
    steps = [step for pattern, step in _ADVICE if re.search(pattern, text)]
    return "; ".join([text, *steps[:1]])
