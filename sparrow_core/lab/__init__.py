"""Experiments: each table and figure of the papers as a function from parameters to rows.

An experiment is data (`experiment.Experiment`): its name and source, parameters, tiny parameters
for a smoke test, a function of parameters and seed, and a chart. Simulations run on production
machines, or on the faster simulators that tests compare with them. `minishark bench` runs
experiments; nothing here depends on minishark.
"""
