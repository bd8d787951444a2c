"""What is read, by whom, and which messages are rows: states, ranges, tasks, screening, rounds. It decides, and does no I/O."""
