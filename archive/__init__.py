"""The archive: durable storage of sessions and its façade, copies, retention, thaw and errors, on top of the wings."""
