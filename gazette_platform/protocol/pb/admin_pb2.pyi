from gazette_platform.protocol.pb import protocol_pb2 as _protocol_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HttpEndpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HttpEndpointResponse(_message.Message):
    __slots__ = ("endpoint",)
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    def __init__(self, endpoint: _Optional[str] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("header", "journal", "min_etcd_revision", "gives_up", "asks_end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    MIN_ETCD_REVISION_FIELD_NUMBER: _ClassVar[int]
    GIVES_UP_FIELD_NUMBER: _ClassVar[int]
    ASKS_END_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    journal: str
    min_etcd_revision: int
    gives_up: bool
    asks_end: bool
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., journal: _Optional[str] = ..., min_etcd_revision: _Optional[int] = ..., gives_up: bool = ..., asks_end: bool = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("status", "header", "end")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    status: _protocol_pb2.Status
    header: _protocol_pb2.Header
    end: int
    def __init__(self, status: _Optional[_Union[_protocol_pb2.Status, str]] = ..., header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., end: _Optional[int] = ...) -> None: ...

class ResetHeadRequest(_message.Message):
    __slots__ = ("header", "journal", "min_etcd_revision", "dry_run", "give_up")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    MIN_ETCD_REVISION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    journal: str
    min_etcd_revision: int
    dry_run: bool
    give_up: bool
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., journal: _Optional[str] = ..., min_etcd_revision: _Optional[int] = ..., dry_run: bool = ..., give_up: bool = ...) -> None: ...

class ResetHeadResponse(_message.Message):
    __slots__ = ("status", "header", "head", "was_refused", "awaited", "store_health_error")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    WAS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    STORE_HEALTH_ERROR_FIELD_NUMBER: _ClassVar[int]
    status: _protocol_pb2.Status
    header: _protocol_pb2.Header
    head: int
    was_refused: bool
    awaited: _containers.RepeatedCompositeFieldContainer[AwaitedBroker]
    store_health_error: str
    def __init__(self, status: _Optional[_Union[_protocol_pb2.Status, str]] = ..., header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., head: _Optional[int] = ..., was_refused: bool = ..., awaited: _Optional[_Iterable[_Union[AwaitedBroker, _Mapping]]] = ..., store_health_error: _Optional[str] = ...) -> None: ...

class AwaitedBroker(_message.Message):
    __slots__ = ("id", "is_running")
    ID_FIELD_NUMBER: _ClassVar[int]
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    id: _protocol_pb2.ProcessSpec.ID
    is_running: bool
    def __init__(self, id: _Optional[_Union[_protocol_pb2.ProcessSpec.ID, _Mapping]] = ..., is_running: bool = ...) -> None: ...

class CheckStoresRequest(_message.Message):
    __slots__ = ("stores",)
    STORES_FIELD_NUMBER: _ClassVar[int]
    stores: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stores: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckStoresResponse(_message.Message):
    __slots__ = ("header", "refused")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    refused: _containers.RepeatedCompositeFieldContainer[RefusedStore]
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., refused: _Optional[_Iterable[_Union[RefusedStore, _Mapping]]] = ...) -> None: ...

class RefusedStore(_message.Message):
    __slots__ = ("store", "reason")
    STORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    reason: str
    def __init__(self, store: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBrokersResponse(_message.Message):
    __slots__ = ("header", "brokers")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    brokers: _containers.RepeatedCompositeFieldContainer[_protocol_pb2.BrokerSpec]
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., brokers: _Optional[_Iterable[_Union[_protocol_pb2.BrokerSpec, _Mapping]]] = ...) -> None: ...

class GetVitalsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetVitalsResponse(_message.Message):
    __slots__ = ("vitals",)
    class VitalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VITALS_FIELD_NUMBER: _ClassVar[int]
    vitals: _containers.ScalarMap[str, float]
    def __init__(self, vitals: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Savepoint(_message.Message):
    __slots__ = ("name", "offsets", "created_at", "journals", "created")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    JOURNALS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    offsets: _containers.ScalarMap[str, int]
    created_at: int
    journals: int
    created: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., offsets: _Optional[_Mapping[str, int]] = ..., created_at: _Optional[int] = ..., journals: _Optional[int] = ..., created: _Optional[_Iterable[int]] = ...) -> None: ...

class PutSavepointRequest(_message.Message):
    __slots__ = ("savepoint", "replace")
    SAVEPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    savepoint: Savepoint
    replace: bool
    def __init__(self, savepoint: _Optional[_Union[Savepoint, _Mapping]] = ..., replace: bool = ...) -> None: ...

class PutSavepointResponse(_message.Message):
    __slots__ = ("header", "savepoint")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINT_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    savepoint: Savepoint
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., savepoint: _Optional[_Union[Savepoint, _Mapping]] = ...) -> None: ...

class GetSavepointRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetSavepointResponse(_message.Message):
    __slots__ = ("header", "savepoint")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINT_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    savepoint: Savepoint
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., savepoint: _Optional[_Union[Savepoint, _Mapping]] = ...) -> None: ...

class ListSavepointsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListSavepointsResponse(_message.Message):
    __slots__ = ("header", "savepoints")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINTS_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    savepoints: _containers.RepeatedCompositeFieldContainer[Savepoint]
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ..., savepoints: _Optional[_Iterable[_Union[Savepoint, _Mapping]]] = ...) -> None: ...

class DeleteSavepointRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteSavepointResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _protocol_pb2.Header
    def __init__(self, header: _Optional[_Union[_protocol_pb2.Header, _Mapping]] = ...) -> None: ...
