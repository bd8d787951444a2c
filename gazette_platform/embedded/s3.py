"""An S3 server as a component, for a platform on one machine that is to be like one on S3.

It is versitygw, over a folder in which objects are plain files. Its keys are made once, and known to
who can read that folder.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING, Final

from gazette_platform.embedded import tools
from gazette_platform.embedded.component import Component, answers_tcp
from gazette_platform.embedded.ports import HOST
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "OWN_STORE", "own_store", "read_keys", "s3_component"]

NAME: Final = "s3"
OWN_STORE: Final = "s3"
"""What ``--store`` says for a server of the platform's own."""
_BUCKET: Final = "gazette"
_REGION: Final = "us-east-1"


def own_store(port: int) -> str:
    """URL of the fragment store on the platform's own server."""
    return f"s3://{_BUCKET}/?endpoint=http://{HOST}:{port}&region={_REGION}"


def read_keys(folder: Path) -> dict[str, str]:
    """Variables that give AWS tools the keys of the server in `folder`, made if there are none.

    Raises: SetupError: the file with them was changed.
    """
    path = folder / "keys.json"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(file, "w") as stream:
            json.dump(
                {"access": f"gazette-{secrets.token_hex(4)}", "secret": secrets.token_urlsafe(24)},
                stream,
            )
    try:
        keys = json.loads(path.read_text("utf-8"))
        return {
            "AWS_ACCESS_KEY_ID": str(keys["access"]),
            "AWS_SECRET_ACCESS_KEY": str(keys["secret"]),
            "AWS_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{path} does not hold the keys of the S3 server: {error!r} (remove it, and the server "
            "gets new ones)"
        ) from error


def s3_component(folder: Path, *, port: int) -> Component:
    """A server with its objects in `folder`, and one bucket.

    Raises: SetupError: it cannot be built: Go is missing.
    """
    objects, attributes, users = (folder / name for name in ("objects", "attributes", "users"))
    for each in (objects / _BUCKET, attributes, users):
        each.mkdir(parents=True, exist_ok=True)
    keys = read_keys(folder)
    command = (
        str(tools.s3_server()),
        "--quiet",
        "--port",
        f"{HOST}:{port}",
        "--iam-dir",
        str(users),
        "posix",
        # Not every file system keeps extended attributes, so they lie in files of their own.
        "--sidecar",
        str(attributes),
        str(objects),
    )
    return Component(
        name=NAME,
        command=command,
        ports=(port,),
        environment={
            "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
        },
        ready=lambda: answers_tcp(HOST, port),
        start_timeout_s=60.0,
        stop_timeout_s=10.0,
    )
