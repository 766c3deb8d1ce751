"""What every study is made of: its declaration, inputs, folder, parts, progress, cost, and the pass over a window."""
