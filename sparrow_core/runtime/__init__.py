"""Processes: the ZeroMQ and in-process drivers, daemons, configuration."""
