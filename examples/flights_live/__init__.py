"""Flights live: a consumer that enriches flights, and tables of what it publishes."""
