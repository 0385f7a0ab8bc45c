"""Whether two answers to one query are the same answer."""
