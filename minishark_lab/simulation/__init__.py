"""The engine in a deterministic simulation: one seed is one history, to its last event.

    simulated (production code, unchanged)            replaced
    sparrow_core: client, scheduler, node monitor,    sockets           world (`simulator`)
      executor                                        threads, time     `fibers`
    query: ladder, run, stage graph, stage jobs,      disks, services   `disks`
      job builder, sinks                              DuckDB            `work`: rows of integers
    tables: loading, storing, deltas, merging,        cluster           `hosts`, `attached`
      replication, rebalancing, restoring

Sessions run statements that are drawn from the seed (`script`) while faults happen that are
drawn from it, too (`faults`). Their answers are compared with those of a model, and at the end
nothing may be left anywhere (`history`). A history that fails is made smaller (`shrink`).
"""
