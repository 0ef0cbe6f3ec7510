"""How bundles and targets are made: data preparation, training with quantisation in the loop, export."""
