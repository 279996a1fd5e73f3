"""Host memory: what the kernel does with it while checkpoints are saved, and how much they need."""
