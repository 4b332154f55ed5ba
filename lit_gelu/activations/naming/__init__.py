"""How an activation is named, registered, resolved and recognised; no mathematics of its own."""
