"""Drivers: what delivers the machines' envelopes. Only `zmq_driver` imports zmq."""
