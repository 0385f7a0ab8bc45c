"""Running one query: from its plan, through stage jobs on the cluster, to the answer."""
