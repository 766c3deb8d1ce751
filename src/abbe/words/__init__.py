"""What a person reads: numbers, findings, names and thresholds that studies and views share."""
