"""Records in every form that they have: of Kafka's batches, of journals' lines, and of Avro values.

`batches` takes what producers send apart, and builds what consumers get. `lines` makes lines of records, and records of lines;
`bulk_lines` does it for all small JSON records of a batch at once. `avro_json` translates values of a schema.

Guarantee: what a form of a topic cannot hold is refused, with the number of the record. Nothing here does I/O.
"""
