"""Work on one run folder that several processes share: who makes which part, and what is left to the merging."""
