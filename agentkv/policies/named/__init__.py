"""The named policies. `agentkv.policies.registry` finds every one that a module here declares."""
