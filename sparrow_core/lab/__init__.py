"""The laboratory: each table and figure of the papers as a function from parameters to rows.

An experiment is data (`experiment.Experiment`): its name, where it comes from, parameters with
tiny ones for a quick look, a pure function of parameters and seed, and a chart. Whatever is
simulated runs on the machines that schedule real queries, or on the vectorised simulator that is
held to them. `minishark bench` runs experiments; nothing here knows of minishark.
"""
