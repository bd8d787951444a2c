"""A journal's open fragment on the local disk, with its digest and its compressed form."""
