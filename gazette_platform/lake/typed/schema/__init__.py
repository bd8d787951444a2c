"""What an Iceberg table of a spec is made of, what an existing one can become, and how other engines mount it."""
