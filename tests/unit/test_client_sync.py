"""The synchronous client mirrors the asynchronous one."""

import inspect

import pytest

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.errors import ValidationError

METHODS = sorted(
    name
    for name, found in vars(AsyncClient).items()
    if inspect.isfunction(found) and not name.startswith("_")
)


@pytest.mark.parametrize("name", METHODS)
def test_client_method_has_the_arguments_of_async_client(name):
    mirrored, original = getattr(Client, name), getattr(AsyncClient, name)
    assert not inspect.iscoroutinefunction(mirrored)
    own, others = (inspect.signature(each).parameters for each in (mirrored, original))
    assert list(own.values()) == list(others.values())
    assert mirrored.__qualname__ == f"Client.{name}"
    assert inspect.getdoc(mirrored)


def test_client_methods_refuse_calls_after_close():
    client = Client(ClientConfig(address="http://127.0.0.1:1"))
    client.close()
    assert client.is_closed
    calls = (client.list, lambda: client.read("a/journal"), lambda: next(client.watch()))
    for call in calls:
        with pytest.raises(ValidationError, match="the client is closed"):
            call()
