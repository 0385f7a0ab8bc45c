"""Tables and figures of the paper on Sparrow, its rivals, traces, and what came after it.

Simulations run on production machines, or on the faster simulators that tests compare with them.
"""
