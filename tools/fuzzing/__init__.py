"""Fuzzing: what feeds hostile input to the library; ``fuzz.py`` beside it is the command."""
