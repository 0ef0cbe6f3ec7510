"""The measurement of forms of KV: what each takes and loses."""
