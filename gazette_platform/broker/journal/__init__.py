"""A journal at this broker: who serves it, our part in it, and where its content is.

`resolver` maps a journal to the brokers that serve it and to our `replica`, which owns its index, appends and timers.
`claims` keeps a journal from going on before earlier spools and the store were consulted, and says in etcd what others must
know: the route, and the holders of content. `gaps` says what remains to be stored, and decides how long reads wait for
missing content. `pulses` are barriers that the journal appends itself.

Guarantee: a replica belongs to one assignment of one journal. When we are demoted, or the journal is made again, another
replica begins, with a spool of its own. Cost: idle journals have timers and no tasks; etcd is written only when a fact changes.
"""
