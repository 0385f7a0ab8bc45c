"""Experiments on placement, for people who study scheduling.

Most of them are those of `sparrow_core.lab`, which knows nothing of minishark; `live` adds real
queries on a real cluster. This is the only other place than `minishark.cluster` that knows
`sparrow_core`, and it knows its laboratory alone.
"""
