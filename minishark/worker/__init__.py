"""What executors do: run fragments over stored Arrow files."""
