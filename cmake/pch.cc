// Only here to own the precompiled header.
