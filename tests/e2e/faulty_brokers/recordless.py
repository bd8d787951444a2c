"""A broker that keeps nothing beyond its process, and says nothing about tenures: as Gazette's brokers.

Run as `gazette`, with an empty spool folder at each start. It patches what etcd and peers get from it beside
Gazette's own keys and messages.
"""

from __future__ import annotations

from gazette_platform.broker import serve
from gazette_platform.broker.api import service
from gazette_platform.broker.peers import PeerCall
from gazette_platform.cli.gazette import main

_announce = serve.announce
_bidi_stream = PeerCall.bidi_stream
_greet = service.ReplicateApi._greet


async def _announce_alone(*args, beside, **options):
    return await _announce(*args, **options)


async def _greet_without_tenure(stream, metadata, replica):
    await _greet(stream, {}, replica)


serve.announce = _announce_alone
PeerCall.bidi_stream = lambda self, *_metadata: _bidi_stream(self)
service.ReplicateApi._greet = staticmethod(_greet_without_tenure)

if __name__ == "__main__":
    main()
