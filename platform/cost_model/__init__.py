"""What a layout will cost before it runs: pure functions over numbers and arrays, no torch, no Ray, no clock."""
