"""The loss of a live LightningModule as a function: it runs ``training_step``, and leaves no trace of that."""
