"""The words of the wire: names, labels, specs, fragments, routes, and what makes them valid.

Everything here is a value: immutable, comparable, free of I/O. Each type reads and writes its
protobuf message (`from_pb`, `to_pb`; the bytes are those that Gazette writes) and knows its rules
(`validate`). Reading never validates, so that a broker can answer with the name of the bad field,
and an append does not pay for checks that were made before. Texts and context paths of errors are
Gazette's, because its clients and tools match them.

``protocol.pb`` holds the generated messages; ``protocol.content`` encodes content without them.
"""

from __future__ import annotations

from gazette_platform.ops.text import format_duration, parse_duration
from gazette_platform.protocol.enums import (
    AppendSuspend,
    CompressionCodec,
    JournalFlag,
    Status,
    SuspendLevel,
)
from gazette_platform.protocol.forms import (
    escape_html,
    fragment_json,
    fragments_text,
    message_jsonpb,
    message_text,
    route_text,
    selector_json,
)
from gazette_platform.protocol.fragments import ZERO_SUM, Fragment, parse_fragment_path
from gazette_platform.protocol.labels import Label, LabelSelector, LabelSet
from gazette_platform.protocol.names import (
    conflicting_prefix,
    split_meta,
    strip_meta,
    validate_journal_name,
    validate_path_component,
    validate_token,
)
from gazette_platform.protocol.offsets import (
    DOUBTED,
    HISTORY,
    created_by,
    created_list,
    created_map,
    history_bits,
    is_another,
    join_created,
    learned,
    require_same,
    split_created,
)
from gazette_platform.protocol.path_postfix import PathPostfixTemplate
from gazette_platform.protocol.routing import (
    BrokerSpec,
    EtcdHeader,
    Header,
    ProcessId,
    Route,
    endpoint_grpc_address,
    endpoint_host,
    validate_endpoint,
)
from gazette_platform.protocol.rules import (
    PAGE_LIMIT_MAX,
    validate_append_chunk,
    validate_append_request,
    validate_append_response,
    validate_apply_change,
    validate_apply_request,
    validate_apply_response,
    validate_fragments_request,
    validate_fragments_response,
    validate_health_request,
    validate_health_response,
    validate_journal_request,
    validate_list_request,
    validate_list_response,
    validate_read_request,
    validate_read_response,
    validate_replicate_request,
    validate_replicate_response,
)
from gazette_platform.protocol.specs import (
    FragmentSpec,
    JournalChange,
    JournalSpec,
    StoreUrl,
    SuspendSpec,
    parse_store_url,
    validate_store_url,
)

__all__ = [
    "DOUBTED",
    "HISTORY",
    "PAGE_LIMIT_MAX",
    "ZERO_SUM",
    "AppendSuspend",
    "BrokerSpec",
    "CompressionCodec",
    "EtcdHeader",
    "Fragment",
    "FragmentSpec",
    "Header",
    "JournalChange",
    "JournalFlag",
    "JournalSpec",
    "Label",
    "LabelSelector",
    "LabelSet",
    "PathPostfixTemplate",
    "ProcessId",
    "Route",
    "Status",
    "StoreUrl",
    "SuspendLevel",
    "SuspendSpec",
    "conflicting_prefix",
    "created_by",
    "created_list",
    "created_map",
    "endpoint_grpc_address",
    "endpoint_host",
    "escape_html",
    "format_duration",
    "fragment_json",
    "fragments_text",
    "history_bits",
    "is_another",
    "join_created",
    "learned",
    "message_jsonpb",
    "message_text",
    "parse_duration",
    "parse_fragment_path",
    "parse_store_url",
    "require_same",
    "route_text",
    "selector_json",
    "split_created",
    "split_meta",
    "strip_meta",
    "validate_append_chunk",
    "validate_append_request",
    "validate_append_response",
    "validate_apply_change",
    "validate_apply_request",
    "validate_apply_response",
    "validate_endpoint",
    "validate_fragments_request",
    "validate_fragments_response",
    "validate_health_request",
    "validate_health_response",
    "validate_journal_name",
    "validate_journal_request",
    "validate_list_request",
    "validate_list_response",
    "validate_path_component",
    "validate_read_request",
    "validate_read_response",
    "validate_replicate_request",
    "validate_replicate_response",
    "validate_store_url",
    "validate_token",
]
