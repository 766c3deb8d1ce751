"""The needle test: prompts with one right answer, margins, and paired gains."""
