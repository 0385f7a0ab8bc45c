"""Programs that run on a cluster's nodes, supervised there, and outlive who submitted them.

`records` says what a job is, `machine` which node runs it (without IO), `keeper` does what a node
has to do for its jobs, `guard` is the process that watches over one program, `client` is how others
submit jobs and ask for them.
"""
