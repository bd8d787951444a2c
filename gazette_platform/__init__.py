"""A streaming log whose storage is the data lake itself."""
