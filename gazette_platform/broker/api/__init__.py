"""What a broker answers: a module for each kind of call, and the service that a transport calls."""
