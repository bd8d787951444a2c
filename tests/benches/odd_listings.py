"""Listings of object stores, and what is answered 200 in their place."""

from __future__ import annotations

from xml.sax.saxutils import escape

__all__ = ["ERROR", "HTML", "ODD", "TIME", "odd_of_s3", "s3_listing"]

TIME = "2024-01-01T00:00:00.000Z"
ERROR = "<Error><Code>InternalError</Code><Message>try again</Message></Error>"
HTML = "<!DOCTYPE html><html><body>log in</body></html>"
_WHOLE = "<IsTruncated>false</IsTruncated>"


def s3_listing(*keys: str, more: str = _WHOLE, name: str, prefix: str) -> str:
    """Return a listing of S3, of a bucket and prefix, with elements of its own (`more`)."""
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>{TIME}</LastModified><Size>1</Size></Contents>"
        for key in keys
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{name}</Name><Prefix>{escape(prefix)}</Prefix>{more}{contents}</ListBucketResult>"
    )


ODD = {
    "error of S3": ERROR,
    "page": HTML,
    "nothing": "",
    "json": '{"error": {"code": 500, "message": "try again"}}',
    "list": "[]",
}
"""Answers that are not listings of any store."""


def odd_of_s3(name: str, prefix: str) -> dict[str, str]:
    """Return answers that are not listings of a bucket and prefix of S3, or contradict themselves."""

    def listing(*keys: str, more: str = _WHOLE, name: str = name, prefix: str = prefix) -> str:
        return s3_listing(*keys, more=more, name=name, prefix=prefix)

    return ODD | {
        "half": listing(f"{prefix}a")[:-20],
        "count without keys": listing(more=f"<KeyCount>3</KeyCount>{_WHOLE}"),
        "cut, and no token": listing(f"{prefix}a", more="<IsTruncated>true</IsTruncated>"),
        "cut or not": listing(f"{prefix}a", more=""),
        "of another bucket": listing(name="other"),
        "of another prefix": listing(prefix="k/"),
        "keys of another prefix": listing("k/a"),
        "no size": listing(f"{prefix}a").replace("<Size>1</Size>", ""),
    }
