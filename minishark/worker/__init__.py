"""The executors' part: running fragments over stored Arrow files."""
