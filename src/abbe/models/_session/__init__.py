"""What tap and swap share: modules, calls, masks, keywords, outputs and the self-check."""
