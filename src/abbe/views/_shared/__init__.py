"""What several views need: the page, colours, axes and series, names beside points, words for numbers."""
