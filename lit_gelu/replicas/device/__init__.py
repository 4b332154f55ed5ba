"""Steps on a device: counted there, by kernels of all replicas, as CUDA graphs."""
