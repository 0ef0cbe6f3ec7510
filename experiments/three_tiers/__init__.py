"""The three-tier KV cache of paper 4 over the block pool: metadata, pipeline, loop, reservation, shadow."""
