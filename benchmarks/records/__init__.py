"""Records to train on, and the lines that every table of a log starts from."""
