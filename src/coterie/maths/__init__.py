"""What methods compute with: distances, groups, masks, generators. Each module is one idea, tested on its own."""
