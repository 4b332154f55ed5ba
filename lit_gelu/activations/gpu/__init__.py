"""Fused kernels of activations for 16-bit tensors on NVIDIA GPUs, and the same formulas for torch.compile.

Triton is imported when the first kernel is launched: `launch` imports `templates`, and that `device`.
"""
