"""The experiments of "Neural Bregman Divergences for Distance Learning" (ICLR 2023), run with askew."""
