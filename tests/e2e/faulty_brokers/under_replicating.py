"""A broker that acknowledges an append once any replica has it, rather than all.

Run as `gazette`: it patches the class that counts the answers of replicas.
"""

from __future__ import annotations

from gazette_platform.broker.replicate.fsm import PipelineFSM, Settled
from gazette_platform.cli.gazette import main
from gazette_platform.protocol import Status

_on_reply = PipelineFSM._on_reply


def _on_any_reply(self, peer, reply):
    if reply.status is not Status.OK or self._answered[peer] == self._asked:
        return _on_reply(self, peer, reply)
    before = max(self._answered)
    self._answered[peer] += 1
    now = max(self._answered)
    return Settled(now) if now > before else None


PipelineFSM._on_reply = _on_any_reply

if __name__ == "__main__":
    main()
