"""Fused kernels of activations for 16-bit tensors on NVIDIA GPUs.

Nothing here is imported with triton unless a kernel is launched: `device` and `templates` import it, and only `launch`
imports these.
"""
