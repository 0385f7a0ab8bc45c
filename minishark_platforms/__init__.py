"""Clusters on machines that Ray or Dask hands out; Ray's datasets.

They launch, watch and restart our nodes. Placement of tasks, data and replicas stay ours.

    supervisor   which nodes are to be launched, and when again: a state machine without IO
    deployment   drives it on a thread, for a session or for the keeper of a shared cluster
    cluster      what a session holds of it
    ray_nodes    a platform: how a node is launched on a machine, watched and ended
    dask_nodes   another
    targets      the entry points: what `connect` was told to use
    host         what runs on that machine: starts a node's process (child), ends it, cleans up
    ray_keeper   keeps a cluster on Ray that outlives sessions
    ray_data     Ray datasets into tables, and back
    ray_blocks   what an actor does for that with its node's files
    ray_errors   what Ray's errors say
    blocks       which blocks of a dataset make which partition: a pure function
"""
