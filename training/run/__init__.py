"""The loop of a training run: its processes, its schedule, its teachers and its snapshots."""
