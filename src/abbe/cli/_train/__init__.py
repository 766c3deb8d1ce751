"""abbe train temperature, length, recall and text: experiments of the lab."""
