"""Where a breach comes from: the first layer that shows it, and what of onnxruntime causes it."""
