"""JSON messages that are models of pydantic, and lines that are not of the type of a message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pydantic
import pytest

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message import (
    NO_UUID,
    Flags,
    JsonFraming,
    MessageClock,
    build_uuid,
    new_producer_id,
    parse_uuid,
)


class Customer(pydantic.BaseModel):
    name: str = ""


class Order(pydantic.BaseModel):
    UUID: str = ""
    customer: Customer | None = None
    at: datetime | None = None
    amount: float = pydantic.Field(default=0.0, alias="Amount")


@dataclass
class Line:
    UUID: str = ""
    amount: float = 0.0


def decoded(framing, line):
    return framing.decoder().decode(line)


def test_models_of_pydantic_are_decoded_stamped_and_encoded():
    framing = JsonFraming(message_type=Order)
    order = decoded(
        framing, b'{"customer": {"name": "Ada"}, "at": "2026-01-02T00:00:00Z", "Amount": "1.5"}\n'
    )
    assert order.customer == Customer(name="Ada")
    assert (order.at, order.amount) == (datetime(2026, 1, 2, tzinfo=UTC), 1.5)
    assert framing.uuid_of(order) == NO_UUID
    uuid = build_uuid(new_producer_id(), MessageClock().tick(), Flags.OUTSIDE_TXN)
    framing.stamp(order, uuid)
    assert framing.uuid_of(order) == parse_uuid(uuid)
    assert decoded(framing, framing.encode(order)) == order
    assert b'"Amount":1.5' in framing.encode(order)
    assert framing.acknowledgement(order) == Order()
    # Within what is not a model, too.
    assert framing.encode({"order": Customer(name="<")}) == b'{"order":{"name":"\\u003c"}}\n'


def test_empty_text_is_not_a_uuid_of_a_type_that_has_it_as_default():
    typed = JsonFraming(message_type=Line)
    assert typed.uuid_of(decoded(typed, b'{"amount": 1}\n')) == NO_UUID
    plain = JsonFraming()
    with pytest.raises(DataError, match="is not a UUID"):
        plain.uuid_of(decoded(plain, b'{"UUID": ""}\n'))


def test_a_model_that_takes_no_uuid_says_so():
    class Frozen(pydantic.BaseModel, frozen=True):
        UUID: str = ""

    class Strict(pydantic.BaseModel):
        needed: int
        UUID: str = ""

    uuid = build_uuid(new_producer_id(), MessageClock().tick(), Flags.OUTSIDE_TXN)
    with pytest.raises(ValidationError, match="Frozen takes no UUID as UUID"):
        JsonFraming(message_type=Frozen).stamp(Frozen(), uuid)
    with pytest.raises(ValidationError, match="no message for an ACK"):
        JsonFraming(message_type=Strict).acknowledgement(Strict(needed=1))


@pytest.mark.parametrize("kind", [Order, Line])
def test_json_of_another_type_is_not_called_no_json(kind):
    framing = JsonFraming(message_type=kind)
    with pytest.raises(DataError, match=rf"^the line is no {kind.__name__}: .*amount.*x") as caught:
        decoded(framing, b'{"Amount": "x", "amount": "x"}\n')
    assert "\n" not in str(caught.value)


def test_invalid_json_is_called_so():
    for framing in (JsonFraming(), JsonFraming(message_type=Line)):
        with pytest.raises(DataError, match="the line is not JSON: "):
            decoded(framing, b"oops\n")
    with pytest.raises(ValidationError, match="no JSON of object: Encoding objects of type object"):
        JsonFraming().encode(object())


def test_model_has_the_field_that_is_named():
    class Meta(pydantic.BaseModel):
        id: str = ""

    class Nested(pydantic.BaseModel):
        meta: Meta = Meta()

    class Open(pydantic.BaseModel, extra="allow"):
        pass

    JsonFraming(message_type=Nested, uuid_field="meta.id")
    JsonFraming(message_type=Open)
    for field in ("UUID", "meta.uuid"):
        with pytest.raises(ValidationError, match=f"Nested has no field {field}"):
            JsonFraming(message_type=Nested, uuid_field=field)
