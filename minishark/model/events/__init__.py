"""What happens in a session, as typed events: one stream, its history in files, its readers."""
