"""What a broker answers: a module for each kind of call, the `service` that a transport calls, and the HTTP `gateway`.

Each call is decoded, its token checked, and its journal resolved (`routing`); if another broker has to answer, the call
is forwarded there. Errors keep Gazette's texts and codes, because its clients match them.
"""
