"""Tables that belong to a running cluster, and outlive the sessions that make and change them.

`records` says what the cluster knows of a table, and what follows from a change; `machine` is the
catalog as one node holds it, `keeper` what the node does for it, `client` how sessions read and
change it. Which nodes hold it, and which of them answers for it, `cluster.jobs` decides as for a
job: one without a program.
"""
