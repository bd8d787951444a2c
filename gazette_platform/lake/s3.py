"""How Spark, the Hive Metastore and Trino reach the S3 store that a fragment store's URL names.

All three find credentials as every AWS tool does: in the environment, a profile, a role. No setting
here holds any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import parse_store_url

if TYPE_CHECKING:
    from collections.abc import Mapping

# Below the prefix of the store, where no journal can be.
_WAREHOUSE: Final = ".gazette/warehouse"
_REGION: Final = "us-east-1"
_FILE_SYSTEM: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
# That of the AWS SDK itself; Hadoop's own default knows no profiles and no roles of containers.
_CREDENTIALS: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """An S3 store, as engines are configured for it."""

    bucket: str
    prefix: str
    """Empty, or ends in a slash."""
    endpoint: str
    """URL of a server; empty: AWS."""
    region: str

    @classmethod
    def of(cls, store: str, environment: Mapping[str, str]) -> Self:
        """The access of the fragment store `store`.

        Args:
            store: ``s3://BUCKET/PREFIX/``, with the arguments ``endpoint`` and ``region`` if need be.
            environment: where AWS tools look for what the URL does not say.

        Raises: ValidationError: it is not an S3 store, or has arguments that engines cannot follow.
        """
        url = parse_store_url(store)
        if url.scheme != "s3":
            raise ValidationError(
                f"{store} is not an s3:// store (on other stores, configure engines of your own, and "
                "give their addresses)"
            )
        arguments = {name.lower(): value for name, value in url.args.items()}
        for name in ("find", "replace", "profile"):
            if arguments.get(name):
                raise ValidationError(
                    f"{store}: engines have no setting for `{name}`, which brokers follow "
                    + ("(set AWS_PROFILE instead)" if name == "profile" else "(leave it out)")
                )
        endpoint = (
            arguments.get("endpoint")
            or environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
            or ""
        )
        if endpoint and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        region = (
            arguments.get("region")
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
            or (_REGION if endpoint else "")
        )
        if not region:
            raise ValidationError(f"{store} has no region (add ?region=…, or set AWS_REGION)")
        return cls(bucket=url.host, prefix=url.prefix, endpoint=endpoint, region=region)

    @property
    def warehouse(self) -> str:
        """Location of Iceberg tables, without a trailing slash."""
        return f"s3://{self.bucket}/{self.prefix}{_WAREHOUSE}"

    def hadoop(self) -> dict[str, str]:
        """Settings of Hadoop's driver, for Spark (each with ``spark.hadoop.`` before it) and Hive."""
        settings = {
            # Locations say s3, as AWS and Trino do.
            "fs.s3.impl": _FILE_SYSTEM,
            "fs.s3a.impl": _FILE_SYSTEM,
            "fs.s3a.aws.credentials.provider": _CREDENTIALS,
            "fs.s3a.endpoint.region": self.region,
        }
        if self.endpoint:
            settings |= {
                "fs.s3a.endpoint": self.endpoint,
                # Your own server has no name for each bucket.
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": str(self.endpoint.startswith("https:")).lower(),
            }
        return settings

    def iceberg(self) -> dict[str, str]:
        """Properties of PyIceberg's reader and writer of files."""
        properties = {"s3.region": self.region}
        if self.endpoint:
            properties["s3.endpoint"] = self.endpoint
        return properties

    def trino(self) -> dict[str, str]:
        """Properties of a catalog of Trino."""
        properties = {"fs.native-s3.enabled": "true", "s3.region": self.region}
        if self.endpoint:
            properties |= {"s3.endpoint": self.endpoint, "s3.path-style-access": "true"}
        return properties
