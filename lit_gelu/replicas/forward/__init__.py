"""The forward pass of all members at once: rules for known layers, `torch.vmap` for other code."""
