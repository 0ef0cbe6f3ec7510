"""The store of KV: device, host and disk tiers under one trie of segments."""
