"""The sans-IO state machines: client, scheduler, node monitor, executor."""
