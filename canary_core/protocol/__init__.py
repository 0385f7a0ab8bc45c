"""What travels between processes: messages and their parts."""
