"""The HTTP gateway: GET, HEAD and PUT of journals for programs without gRPC.

`messages` translates, without I/O, between HTTP (queries, headers, statuses) and the broker's calls; `gateway` carries calls
out. Queries and headers are those of Gazette's gateway; `gateway` lists where it departs. A GET with ``block=true`` follows
a journal; browsers get it as server-sent events. Requests that a foreign web page made are refused (`ops.network`).
"""
