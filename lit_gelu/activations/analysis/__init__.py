"""What is computed of an activation as a function of one number: shape, gains, differences, initial weights."""
