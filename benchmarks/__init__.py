"""Speed and accuracy beside the peers, as ratios in one run. Not part of the distribution."""
