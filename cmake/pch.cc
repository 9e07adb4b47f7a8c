// Only here to own a precompiled header.
