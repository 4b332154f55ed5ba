"""Activation functions for PyTorch Lightning: choose, swap, measure and export them to ONNX."""
