"""A journal at this broker: who serves it, our part in it, and where its content is.

`resolver` maps a journal to the brokers that serve it and to our `replica`, which owns its index, appends and timers.
`claims` and `storing` say in etcd what others must know: the route, the holders of content, what remains to be stored.
`readiness` keeps a journal from going on before earlier spools and the store were consulted, `gaps` decides how long reads
wait for missing content, and `pulses` are barriers that the journal appends itself.

Cost: a few tasks for each assigned journal, and writes to etcd only when one of these facts changes.
"""
