"""A server of one model on one machine: many sessions at once, which go cold and come back."""
