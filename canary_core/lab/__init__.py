"""Experiments: the figures of Canary's paper as functions from parameters to rows.

They use the types and reports of `sparrow_core.lab`, and run as `minishark bench` commands.
"""
