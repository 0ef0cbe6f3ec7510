"""Commands of rooms above the core, and work for its own, by name: no other file of the core names one of these rooms.

A group takes those of its name. What a command needs beyond the core, an extra installs (`plt_codec/extras.py`).
"""

COMMANDS = {
    "pltz": {
        "thaw": "pltz.kv.commands.thaw:thaw",
        "hook": "pltz.serving.commands.hook:hook",
        "llama": "pltz.serving.commands.llama:llama",
        "live": "pltz.serving.commands.live:live",
        "browse": "pltz.serving.commands.browse:browse",
        "serve": "pltz.serving.commands.serve:serve",
        "nightly": "pltz.serving.commands.nightly:nightly",
        "target": "pltz.kv.commands.target:target",
    },
    "bundle": {"train": "pltz.training.commands.train:train", "distill": "pltz.training.commands.distill:distill"},
}
CLEAR_HOT = "pltz.kv.store.kv_folder:clear_all"  # of `pltz archive erase` and `forget`
