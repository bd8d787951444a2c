"""What every package needs to run: clocks, owned tasks, retry delays, logging, metrics."""
