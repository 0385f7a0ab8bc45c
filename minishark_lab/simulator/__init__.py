"""Machines in simulated time: a world, its network, Sparrow's clusters and workloads in it."""
