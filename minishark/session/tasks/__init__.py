"""Python tasks straight on Sparrow: futures, executors, maps, broadcasts, objects in parts."""
