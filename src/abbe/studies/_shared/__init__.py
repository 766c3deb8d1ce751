"""What several studies need: settings, windows, one pass with many readers, a folder that can be resumed, costs."""
