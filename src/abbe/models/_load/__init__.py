"""Load a transformer: the embedded one, a pulled one, a folder, a GGUF file or a model on the hub."""
