"""A journal at this broker: who serves it, our part in it, and what of its content is where."""
