"""Programs on a shared cluster of two hosts, which talk over tcp with keys."""
