"""The applications of Canary's paper: kernels on NumPy arrays, drivers, and plain NumPy."""
