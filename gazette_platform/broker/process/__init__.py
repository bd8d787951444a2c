"""What a broker is as a process: signals, the end that does not wait for ever, the names it goes by."""
