"""What `lit_gelu.callbacks.ActivationSwap` is made of."""
