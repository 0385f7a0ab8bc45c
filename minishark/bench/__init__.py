"""`minishark bench`: all experiments, and those that need SQL.

`sparrow_core.lab` has the experiments that need no SQL. Here are the registry, which runs all of
them in the same way, and those with real queries on real clusters: live placement, fault injection
(chaos) and long load.
"""
