"""The page that shows what a cluster does: a board made of events, and a server for browsers."""
