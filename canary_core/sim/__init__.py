"""Programs, workers and a controller in simulated time, with faults."""
