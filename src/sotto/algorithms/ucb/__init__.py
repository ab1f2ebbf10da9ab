"""Private UCB-VI on finite problems, calibrated and as published."""
