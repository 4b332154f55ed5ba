"""What `make site` is made of: the pages' source, the gallery of activations, the reference, the check of links."""
