"""How an activation becomes operators: the policy, the opset, the dtype, hand-written spellings and biases."""
