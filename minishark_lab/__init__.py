"""The laboratory: experiments on minishark and its two cores; the product never imports it.

`harness` says what an experiment is, and checks its settings, writes its rows and draws them;
`simulator` runs machines in simulated time; `sparrow` and `canary` have the papers' experiments,
which need no SQL, over it, `models` of clusters and `applications`; `cluster` has those with real
queries on real clusters, `clickbench` a benchmark of one wide table; `chaos` and `simulation`
inject faults. `registry` has all by name; `minishark bench` (`command`) reaches them by an entry
point.
"""
