// This file exists only because a precompiled header needs a source.
