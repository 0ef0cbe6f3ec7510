"""The port of a form: encode and decode, its parts as they arrive, its receipt, and keys without rotation."""
