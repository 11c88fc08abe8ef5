"""Fuzzing: what feeds hostile input to the library; ``fuzz.py`` next to it is the command."""
